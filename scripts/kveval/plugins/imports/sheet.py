"""Makes the sheet of result trees: what can be told of each level, a `?` for what cannot, and the next free run.

A sheet that is there is only added to: its lines are its user's.
"""

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kveval.campaign.catalogue import Catalogue
from kveval.campaign.import_sheet import (
    COLUMNS,
    SEPARATOR,
    UNKNOWN,
    ImportSheet,
    read_sheet,
)
from kveval.campaign.problems import ConfigError
from kveval.host.files import write_bytes
from kveval.host.findings import Remark
from kveval.load.reports import ReportFileError
from kveval.load.reports.reading import read_report
from kveval.plugins.imports.drafts import Draft, drafts_of, merge_partial_runs
from kveval.plugins.imports.facts import ReportSummary
from kveval.plugins.imports.forms import scan
from kveval.plugins.imports.interpret import FoundLevel, NoReport, Result, interpret
from kveval.plugins.imports.october_2025 import PublishedRow
from kveval.plugins.imports.remarks import remark

Texts = dict[str, str]
CellTexts = tuple[str, ...]
"""Model, scenario and cpu_blocks as a sheet has them, UNKNOWN for what cannot be told."""
# The files of `vllm bench sweep`, from run=0 on.
_SWEEP_RUN = re.compile(r"(?:^|/)run=(\d+)$")
_OF_CELL = ("model", "scenario", "cpu_blocks")
_OF_KIND = ("hardware", "software", "replicas")


@dataclass(frozen=True)
class SheetUpdate:
    """The outcome of writing a sheet: `added` are its new rows by their lines.

    `known` counts levels that were in it already; `readable`: lines with a `problem` whose report can be read by now;
    `others`: what in the trees is no result, and why; `published`: report -> the row that a publication has of it.
    """

    path: Path
    added: Mapping[int, Texts]
    known: int
    readable: Sequence[int]
    others: Mapping[str, str]
    published: Mapping[str, PublishedRow]


@dataclass(frozen=True)
class _Level:
    """A level of a result as a row of the sheet, `texts`, that has a run's number only if its report says it.

    `run`: equal for the levels of one run.
    """

    run: object
    texts: Texts

    def place(self, sheet: ImportSheet) -> tuple[str, str]:
        """Return the report, and the benchmark in it, by which a sheet knows a row."""
        return sheet.file(self.texts["report"]), self.texts["benchmark"]


def update_sheet(
    roots: Sequence[Path], path: Path, catalogue: Catalogue
) -> SheetUpdate:
    """Add the levels of result trees to the sheet at `path`, made if it is not there; return what was added.

    Every report is read. Lines that are there stay as they are. Raises ConfigError for a sheet with mistakes, OSError
    for a tree that cannot be read.
    """
    sheet, header = _existing(path)
    results, others = _content(roots, catalogue)
    levels = _levels(results, sheet)
    present = {
        (sheet.file(row.report), str(row.benchmark)) for row in sheet.rows.values()
    }
    known = [level for level in levels if level.place(sheet) in present]
    new = [level for level in levels if level.place(sheet) not in present]
    numbers = _RunNumbers(sheet, known)
    rows = [{**level.texts, "run": numbers.of(level)} for level in new]
    added = _write(path, header, rows)
    published = {
        _name(result.root, result.report, path.parent): result.published
        for result in results
        if result.published is not None
    }
    return SheetUpdate(path, added, len(known), _readable(sheet), others, published)


def _existing(path: Path) -> tuple[ImportSheet, Sequence[str]]:
    """Return the sheet that is there, and its columns; an empty one with all columns if there is none."""
    if not path.exists():
        return ImportSheet(path, {}), COLUMNS
    sheet, problems = read_sheet(path)
    if problems:
        raise ConfigError(problems)
    with path.open(newline="", encoding="utf-8-sig") as file:
        return sheet, next(csv.reader(file))


def _content(
    roots: Sequence[Path], catalogue: Catalogue
) -> tuple[list[Result], dict[str, str]]:
    """Return the results in trees, and what is none there, with the reason."""
    results: list[Result] = []
    others: dict[str, str] = {}
    for root in roots:
        tree = scan(root)
        for place, reason in tree.others.items():
            others[str(root / place)] = reason
        for files in tree.results:
            try:
                results.append(interpret(root, files, catalogue))
            except NoReport as reason:
                others[str(root / files.place)] = str(reason)
    return results, others


def _levels(results: Sequence[Result], sheet: ImportSheet) -> list[_Level]:
    """Return every level of the results as a row, those of runs first, in the order of their cells and times."""
    base = sheet.path.parent
    named = [result for result in results if result.declared.arm]
    originals, copies = _without_copies(named, sheet)
    originals = _equal_configurations(originals)
    mixed = _mixed_cells(originals, sheet)
    runs, left_out = merge_partial_runs(drafts_of(originals))
    levels: list[_Level] = []
    for number, draft in enumerate(runs):
        undecided = mixed.get(_cell_texts(draft.first))
        for row in _draft_rows(draft, base):
            decided = _with_use(row, UNKNOWN, undecided) if undecided else row
            levels.append(_Level((draft.cell, number), decided))
    for number, (draft, reason) in enumerate(left_out):
        for row in _draft_rows(draft, base):
            run = (draft.cell, "left out", number)
            levels.append(_Level(run, _with_use(row, "no", reason)))
    for result, reason in copies:
        for row in _rows(result, base):
            levels.append(_Level(_key(result), _with_use(row, "no", reason)))
    drafts = [*runs, *(draft for draft, _ in left_out)]
    in_a_run = {_key(member.result) for draft in drafts for member in draft.members}
    for result in originals:
        if _key(result) not in in_a_run:
            for row in _rows(result, base):
                levels.append(_Level(_key(result), {**row, "use": "no"}))
    for result in results:
        if result.declared.arm is None:
            for row in _rows_of_other(result, base):
                levels.append(_Level(_key(result), row))
    return levels


def _key(result: Result) -> tuple[Path, str]:
    return result.root, result.files.place


def _without_copies(
    results: Iterable[Result], sheet: ImportSheet
) -> tuple[list[Result], list[tuple[Result, Remark]]]:
    """Return the results, and the copies of earlier ones with a remark: they would count as further runs."""
    base = sheet.path.parent
    # The report that has a level first, by the level's cell, number and start.
    first_reports: dict[tuple[CellTexts, str, str], str] = {}
    for row in sheet.rows.values():
        if row.use != "no" and row.start:
            cell: CellTexts = (row.model, row.scenario, str(row.cpu_blocks))
            level = (cell, str(row.level), row.start)
            first_reports.setdefault(level, sheet.file(row.report))
    kept, copies = [], []
    for result in results:
        report = sheet.file(_name(result.root, result.report, base))
        cell = _cell_texts(result)
        levels = [
            (cell, str(level.level), _time(level.facts.start))
            for level in result.levels
        ]
        firsts = {first_reports.get(level, report) for level in levels}
        if firsts and report not in firsts:
            copies.append(
                (
                    result,
                    remark(
                        "copy",
                        "the same measurement as {report}: equal levels at equal times",
                        report=min(firsts),
                    ),
                )
            )
            continue
        kept.append(result)
        for level in levels:
            first_reports.setdefault(level, report)
    return kept, copies


def _equal_configurations(results: Sequence[Result]) -> list[Result]:
    """Return the results with a remark on those whose configuration more than one cell ran with."""
    cells: dict[str, set[CellTexts]] = {}
    for result in results:
        if result.known and result.configuration is not None:
            alike = cells.setdefault(result.configuration, set())
            alike.add(_cell_texts(result))
    remarked = []
    for result in results:
        alike = cells.get(result.configuration or "", set()) if result.known else set()
        others = sorted("/".join(cell) for cell in alike - {_cell_texts(result)})
        replicates = (
            [
                remark(
                    "configured_alike",
                    "configured like {cells: and }: a difference between them is noise (A/A)",
                    cells=others,
                )
            ]
            if others
            else []
        )
        remarked.append(replace(result, remarks=(*result.remarks, *replicates)))
    return remarked


def _mixed_cells(
    results: Iterable[Result], sheet: ImportSheet
) -> dict[CellTexts, Remark]:
    """Return a remark for each cell that has results of different machines or releases."""
    mixed = {}
    for cell, kinds in _kinds_of_cells(results, sheet).items():
        different = [
            f"{name} {' and '.join(sorted(texts))}"
            for name, texts in kinds.items()
            if len(texts) > 1
        ]
        if different:
            mixed[cell] = remark(
                "several_kinds",
                "the cell has results of {kinds:; }: `use` yes for one of them, or a scenario of its own for each",
                kinds=different,
            )
    return mixed


def _kinds_of_cells(
    results: Iterable[Result], sheet: ImportSheet
) -> dict[CellTexts, dict[str, set[str]]]:
    """Return what each cell has results of: its machines, its releases and its numbers of replicas.

    What the sheet leaves out does not count.
    """
    base = sheet.path.parent
    listed = {sheet.file(row.report) for row in sheet.rows.values()}
    kinds: dict[CellTexts, dict[str, set[str]]] = {}

    def add(cell: CellTexts, values: Iterable[object]) -> None:
        of_cell = kinds.setdefault(cell, {name: set() for name in _OF_KIND})
        for name, value in zip(_OF_KIND, values, strict=True):
            of_cell[name].add(_text(value))

    for result in results:
        report = sheet.file(_name(result.root, result.report, base))
        if result.known and report not in listed:
            add(_cell_texts(result), result.kind)
    for row in sheet.rows.values():
        if row.use != "no":
            cell = (row.model, row.scenario, str(row.cpu_blocks))
            add(cell, (getattr(row, name) for name in _OF_KIND))
    return kinds


def _with_use(row: Texts, use: str, reason: Remark) -> Texts:
    """Return a row with another `use`, and the reason before its remarks."""
    return {**row, "use": use, "remarks": _joined(str(reason), row["remarks"])}


def _draft_rows(draft: Draft, base: Path) -> Iterator[Texts]:
    """Yield the rows of a run, all of its cell: what gave nothing is of the run that it was meant for."""
    cell = dict(zip(_OF_CELL, _cell_texts(draft.first), strict=True))
    for member in draft.members:
        yield _row(member.result, member.level, base) | cell


def _rows(result: Result, base: Path) -> list[Texts]:
    """Return the rows of all levels of a result, of one that gave nothing a single one."""
    return [_row(result, level, base) for level in result.levels or (None,)]


def _rows_of_other(result: Result, base: Path) -> Iterator[Texts]:
    """Yield the rows of a report whose name says nothing: of which run they are, it may say itself."""
    for level in result.levels or (None,):
        number = level.facts.run_number if level else None
        named = _SWEEP_RUN.search(result.files.name)
        if number is None and named is not None:
            number = int(named[1])
        run = UNKNOWN if number is None or number < 0 else str(number + 1)
        use = "yes" if level else "no"
        yield _row(result, level, base) | {"use": use, "run": run}


def _row(result: Result, level: FoundLevel | None, base: Path) -> Texts:
    """Return a level of a result as a row without a run; without a level, a result that gave nothing."""
    files = result.files
    tree = result.root.resolve().name
    values = {}
    if level is not None:
        values = {
            "level": str(level.level),
            "benchmark": str(level.benchmark),
            "start": _time(level.facts.start),
            "problem": _joined(level.facts.error or ""),
        }
    return {
        "use": "yes",
        **dict(zip(_OF_CELL, _cell_texts(result), strict=True)),
        "level": _text(result.declared.rate) or UNKNOWN,
        "report": _name(result.root, result.report, base),
        "folder": os.path.normpath(f"{tree}/{files.folder}"),
        "benchmark": "0",
        "recording": _names(result.root, files.recording, base),
        "server_files": _names(result.root, files.server_files, base),
        **dict(zip(_OF_KIND, map(_text, result.kind), strict=True)),
        "tensor_parallel_size": _text(result.tensor_parallel_size),
        "arm": result.declared.arm or "",
        "vllm": result.vllm or "",
        "problem": _joined(result.problem),
        "guidellm": result.guidellm,
        "start": "",
        "configuration": (result.configuration or "")[:8],
        "remarks": _joined(*map(str, result.remarks)),
        **values,
    }


def _cell_texts(result: Result) -> CellTexts:
    return tuple(UNKNOWN if value is None else str(value) for value in result.cell)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _joined(*texts: str) -> str:
    """Return texts as one, on one line."""
    return "; ".join(" ".join(text.split()) for text in texts if text)


def _time(seconds: float) -> str:
    """Return a time in UTC, to the millisecond."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _names(root: Path, paths: Iterable[str], base: Path) -> str:
    return SEPARATOR.join(_name(root, path, base) for path in paths)


def _name(root: Path, path: str, base: Path) -> str:
    """Return how the sheet names a file of a tree: absolute as the tree is, or relative to the sheet's folder."""
    full = os.path.normpath(root / path)
    return full if root.is_absolute() else os.path.relpath(full, base)


class _RunNumbers:
    """The numbers of runs: levels of a run that is in the sheet get its number, other runs the next of their cell."""

    def __init__(self, sheet: ImportSheet, known: Iterable[_Level]) -> None:
        # By run, as levels name it; and the levels of each number of a cell.
        self._numbers: dict[object, int] = {}
        self._levels: dict[tuple[CellTexts, int], set[str]] = {}
        columns = (*_OF_CELL, *_OF_KIND, "arm")
        numbered = [row for row in sheet.rows.values() if row.run != UNKNOWN]
        for row in numbered:
            texts = {name: _text(getattr(row, name)) for name in columns}
            self._occupy(texts, int(row.run), str(row.level))
        numbers = {
            (sheet.file(row.report), str(row.benchmark)): int(row.run)
            for row in numbered
        }
        for level in known:
            place = level.place(sheet)
            if place in numbers:
                self._numbers.setdefault(level.run, numbers[place])

    def of(self, level: _Level) -> str:
        """Return the number of the run of a new row: what its report says, if it does."""
        if "run" in level.texts:
            return level.texts["run"]
        cell, level_text = self._cell(level.texts), level.texts["level"]
        number = self._numbers.get(level.run)
        if number is None or level_text in self._levels.get((cell, number), ()):
            used = [run for other, run in self._levels if other == cell]
            number = max(used, default=0) + 1
            self._numbers[level.run] = number
        self._occupy(level.texts, number, level_text)
        return str(number)

    def _occupy(self, texts: Texts, run: int, level: str) -> None:
        self._levels.setdefault((self._cell(texts), run), set()).add(level)

    @staticmethod
    def _cell(texts: Texts) -> CellTexts:
        """Return what distinguishes a cell from others: what is not known of it by what the results call it."""
        cell = tuple(texts[name] for name in (*_OF_CELL, *_OF_KIND))
        if UNKNOWN not in cell:
            return cell
        return (*cell, texts["arm"])


def _readable(sheet: ImportSheet) -> list[int]:
    """Return the lines with a problem whose level can be read by now."""
    lines = []
    for line, row in sheet.rows.items():
        path = Path(sheet.file(row.report))
        if not row.problem or not path.is_file():
            continue
        try:
            levels = ReportSummary.from_report(read_report(path)).levels
        except ReportFileError:
            continue
        if row.benchmark < len(levels) and levels[row.benchmark].error is None:
            lines.append(line)
    return lines


def _write(
    path: Path, header: Sequence[str], rows: Sequence[Texts]
) -> dict[int, Texts]:
    """Append rows to a sheet, which is made with its header if it is not there; return the rows by their lines."""
    old = path.read_bytes() if path.exists() else b""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, header, extrasaction="ignore", lineterminator="\n")
    if not old:
        writer.writeheader()
    elif not old.endswith(b"\n"):
        text.write("\n")
    first = old.count(b"\n") + text.getvalue().count("\n") + 1
    added: dict[int, Texts] = {}
    for number, row in enumerate(rows):
        writer.writerow(row)
        added[first + number] = row
    if rows or not old:
        write_bytes(path, old + text.getvalue().encode())
    return added
