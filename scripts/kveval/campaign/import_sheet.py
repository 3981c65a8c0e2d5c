"""The sheet of a campaign that imports: CSV with a row for each level that was measured elsewhere.

`kveval import` writes it, and a user corrects it. What stands in it is what is imported: no name of a file means anything.
"""

import csv
import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from kveval.campaign.catalogue import Catalogue
from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigProblem, closest
from kveval.campaign.types import VersionText
from kveval.host.values import Strict, Text
from kveval.load.reports import ReportFileError
from kveval.load.reports.reading import require_report

UNKNOWN = "?"
"""What stands in a column whose value has to be filled in; such a row is not imported."""
SEPARATOR = ";"
"""Between the paths of one column."""

Unknown = Literal["?"]
_Count = Annotated[int, Field(ge=0)]
_Number = Annotated[int, Field(ge=1)]


class SheetRow(Strict):
    """A level that was measured elsewhere. Paths are absolute, or relative to the folder of the sheet."""

    use: Literal["yes", "no", "?"] = "yes"
    """`no` leaves the level out; `?` in this or another column has to be corrected first, and leaves it out until then"""
    model: Text = Field(description="a name in models.yaml")
    scenario: Text = Field(
        description="a name in scenarios.yaml, or in the campaign's `scenarios`"
    )
    cpu_blocks: _Count | Unknown
    """size of the CPU tier that ran, in 16-token blocks of the model; 0 without one"""
    run: _Number | Unknown
    """number of the run that the level is part of, from 1 for each cell; a run has a level once"""
    level: _Count | Unknown
    """streams, requests a minute of an open loop, or the position of a sweep's strategy in the order of their load"""
    report: Text
    """report of GuideLLM or of `vllm bench serve`, JSON, of GuideLLM also YAML; plain or packed by zstd, gzip, xz, bzip2"""
    folder: str = Field("", description="where it lies in its tree; to sort by")
    hardware: Text | None = None
    """NODESxGPUSxGPU, such as 1x2xL40S, or another name; runs of one cell have one"""
    software: Text | None = Field(
        None, description="release of the stack; runs of one cell have one"
    )
    replicas: _Number | None = Field(
        None, description="servers that share the load; runs of one cell have as many"
    )
    tensor_parallel_size: _Number | None = Field(
        None, description="GPUs of one server; else as many as models.yaml says"
    )
    arm: Text | None = Field(
        None, description="what the results call the arm; else the scenario"
    )
    vllm: VersionText | None = None
    """vLLM's release, which decides what its metrics are called; empty where it is not known"""
    problem: str = ""
    """why the level has no result: it is then a level of its run that failed"""
    guidellm: str = Field("", description="what wrote the report; for reading")
    start: str = Field("", description="when the level began, UTC; for reading")
    configuration: str = ""
    """equal for servers with equal arguments, environment, hardware and software; for reading"""
    remarks: str = ""
    """what names, arguments and report do not agree in, and what a `?` needs; in run.json as well"""
    benchmark: _Count = Field(
        0, description="which benchmark of the report the level is, from 0"
    )
    recording: str = ""
    """PCP archives, or folders of them, that cover the level, separated by `;`; may cover more than it"""
    server_files: str = ""
    """benchmark-config.txt and the server's start-up log, separated by `;`: its arguments, environment and sizes"""

    @property
    def questions(self) -> list[str]:
        """The columns that have to be filled in."""
        values = {name: getattr(self, name) for name in SheetRow.model_fields}
        return [name for name, value in values.items() if value == UNKNOWN]

    @property
    def imported(self) -> bool:
        """Whether the row is imported: wanted, and nothing in it is open."""
        return self.use == "yes" and not self.questions

    @property
    def cell(self) -> Cell:
        """The cell of a row that is imported."""
        return Cell(self.model, self.scenario, int(self.cpu_blocks))


COLUMNS = tuple(SheetRow.model_fields)
_REQUIRED = tuple(
    name for name, field in SheetRow.model_fields.items() if field.is_required()
)
_OF_CELL = ("hardware", "software", "replicas")
_OF_RUN = ("tensor_parallel_size", "arm")


@dataclass(frozen=True)
class ImportSheet:
    """A sheet as read: its file, and its rows by their lines in it."""

    path: Path
    rows: Mapping[int, SheetRow]

    @property
    def imported(self) -> dict[int, SheetRow]:
        """The rows that are imported, by their lines."""
        return {line: row for line, row in self.rows.items() if row.imported}

    def file(self, name: str) -> str:
        """Return the path of a file that the sheet names, relative to the working directory unless the name is absolute."""
        # As texts, because every plan asks for thousands: pathlib takes five times as long.
        return os.path.normpath(
            name if name.startswith("/") else f"{self._folder}/{name}"
        )

    @cached_property
    def _folder(self) -> str:
        return self.path.parent.as_posix()

    def files(self, names: str) -> list[str]:
        """Return the paths of the files that a column of several names."""
        parts = (name.strip() for name in names.split(SEPARATOR))
        return [self.file(name) for name in parts if name]


def read_sheet(path: Path) -> tuple[ImportSheet, list[ConfigProblem]]:
    """Read a sheet that is there; return it, and each mistake in it with its line and column."""
    sheet = path.as_posix()
    problems: list[ConfigProblem] = []
    rows: dict[int, SheetRow] = {}
    try:
        # Spreadsheets begin a file with a mark of its encoding.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            problems += _header_problems(sheet, header)
            if problems:
                return ImportSheet(path, {}), problems
            line = reader.line_num + 1
            for values in reader:
                row = _row(sheet, line, header, values) if any(values) else []
                if isinstance(row, SheetRow):
                    rows[line] = row
                else:
                    problems += row
                line = reader.line_num + 1
    except (csv.Error, UnicodeDecodeError) as error:
        message = f"cannot be read as CSV in UTF-8 ({error})"
        problems.append(ConfigProblem(sheet, "", message, code="no_csv"))
    return ImportSheet(path, rows), problems


def _header_problems(sheet: str, header: Sequence[str]) -> Iterator[ConfigProblem]:
    place = "line 1"
    for name in header:
        if name not in COLUMNS:
            valid, near = closest(name, COLUMNS)
            message = f"there is no column {name!r}"
            yield ConfigProblem(sheet, place, message, valid, "unknown_column", near)
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        message = f"the columns {', '.join(missing)} are missing"
        valid = f"{','.join(COLUMNS)}, separated by commas"
        yield ConfigProblem(sheet, place, message, valid, "missing_column")
    if len(set(header)) < len(header):
        message = "a column is there twice"
        yield ConfigProblem(sheet, place, message, code="repeated_column")


def _row(
    sheet: str, line: int, header: Sequence[str], values: Sequence[str]
) -> SheetRow | list[ConfigProblem]:
    """Return a row, or what is wrong with it."""
    if len(values) != len(header):
        message = f"it has {len(values)} values, the first line {len(header)} columns"
        valid = 'a value for each column; a comma in a value needs quotes: "a,b"'
        return [ConfigProblem(sheet, f"line {line}", message, valid, "other_length")]
    texts = {
        name: value.strip()
        for name, value in zip(header, values, strict=True)
        if value.strip()
    }
    try:
        return SheetRow.model_validate(texts)
    except ValidationError as error:
        columns = dict.fromkeys(
            str(detail["loc"][0]) for detail in error.errors(include_url=False)
        )
        return [_mistake(sheet, line, name, texts.get(name)) for name in columns]


def _mistake(sheet: str, line: int, name: str, text: str | None) -> ConfigProblem:
    key = f"line {line}, column {name}"
    valid = _valid(name)
    if text is None:
        return ConfigProblem(sheet, key, "is empty", valid, "missing")
    return ConfigProblem(
        sheet, key, f"{text!r} cannot be used here", valid, "wrong_value"
    )


def _valid(name: str) -> str:
    """Return what a column takes, in words."""
    schema: dict[str, Any] = SheetRow.model_json_schema()["properties"][name]
    kinds = schema.get("anyOf", [schema])
    values: list[str] = []
    for kind in kinds:
        if kind.get("type") == "integer":
            values.append(f"a whole number ({kind['minimum']} or more)")
        values += map(str, kind.get("enum", [kind["const"]] if "const" in kind else []))
    description = " ".join(str(schema.get("description", "")).split())
    return f"{' or '.join(values)}: {description}" if values else description


def sheet_problems(sheet: ImportSheet, catalogue: Catalogue) -> list[ConfigProblem]:
    """Return what in the rows does not fit the catalogues, the files that are there, or other rows.

    Equal mistakes of several lines are one. Opens the beginning of each report.
    """
    place = sheet.path.as_posix()
    if not sheet.imported:
        return [ConfigProblem(place, "", _nothing(sheet), code="nothing_to_import")]
    lines: dict[ConfigProblem, list[int]] = {}
    for line, problem in itertools.chain(
        _unknown_names(sheet, catalogue), _file_problems(sheet)
    ):
        lines.setdefault(problem, []).append(line)
    alone = [
        ConfigProblem(
            place,
            f"{_lines(numbers)}, column {problem.key}",
            problem.message,
            problem.valid,
            problem.code,
            problem.near,
        )
        for problem, numbers in lines.items()
    ]
    return [*alone, *_contradictions(sheet)]


def _nothing(sheet: ImportSheet) -> str:
    open_ = [line for line, row in sheet.rows.items() if row.questions]
    if open_:
        return f"no row can be imported: {UNKNOWN} in {_lines(open_)} has to be corrected first"
    return "no row is to be imported: `use` is nowhere yes"


def _lines(numbers: Sequence[int]) -> str:
    """Name lines of the sheet, the first three of many."""
    first = ", ".join(map(str, numbers[:3]))
    if len(numbers) == 1:
        return f"line {first}"
    more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
    return f"lines {first}{more}"


_Located = tuple[int, ConfigProblem]


def _unknown_names(sheet: ImportSheet, catalogue: Catalogue) -> Iterator[_Located]:
    """Yield the names of models and scenarios that are not known, also of rows that are still open."""
    known_names: dict[str, Collection[str]] = {
        "model": catalogue.models,
        "scenario": catalogue.scenarios,
    }
    for line, row in sheet.rows.items():
        for column, known in known_names.items():
            name = getattr(row, column)
            if row.use == "no" or name == UNKNOWN or name in known:
                continue
            valid, near = closest(name, known)
            message = f"there is no {column} {name!r}"
            yield (
                line,
                ConfigProblem("", column, message, valid, "unknown_name", near),
            )


def _file_problems(sheet: ImportSheet) -> Iterator[_Located]:
    """Yield the files that are not there, and the reports that are none."""
    unusable: dict[str, ConfigProblem | None] = {}
    for line, row in sheet.imported.items():
        for column in ("recording", "server_files"):
            for path in sheet.files(getattr(row, column)):
                if not Path(path).exists():
                    yield line, _absent(column, path)
        if row.problem:
            continue
        if row.report not in unusable:
            unusable[row.report] = _report_problem(sheet.file(row.report))
        problem = unusable[row.report]
        if problem is not None:
            yield line, problem


def _absent(column: str, path: str) -> ConfigProblem:
    return ConfigProblem(
        "",
        column,
        f"{path} does not exist",
        "a path, absolute or relative to the sheet's folder",
        "absent",
    )


def _report_problem(name: str) -> ConfigProblem | None:
    """Return why a file is no report, None if it begins like one."""
    path = Path(name)
    if not path.is_file():
        return _absent("report", name)
    try:
        require_report(path)
    except ReportFileError as error:
        right = "`use` no, or the reason in `problem`, with which the level counts as failed"
        return ConfigProblem("", "report", str(error), right, error.code)
    return None


def _contradictions(sheet: ImportSheet) -> Iterator[ConfigProblem]:
    """Yield what rows of one run, or of one cell, do not agree in."""
    place = sheet.path.as_posix()
    cells: dict[Cell, dict[int, dict[int, SheetRow]]] = {}
    for line, row in sheet.imported.items():
        cells.setdefault(row.cell, {}).setdefault(int(row.run), {})[line] = row
    for cell, runs in cells.items():
        everything = {line: row for rows in runs.values() for line, row in rows.items()}
        yield from _mixtures(place, f"cell {cell.path}", everything, _OF_CELL)
        for number, rows in runs.items():
            run = f"run {number} of {cell.path}"
            yield from _repetitions(place, run, rows)
            yield from _mixtures(place, run, rows, _OF_RUN)
            if all(row.problem for row in rows.values()):
                message = f"every level of {run} has a problem"
                key = f"{_lines([*rows])}, column problem"
                yield ConfigProblem(place, key, message, "use no", "failed_run")
        yield from _without_common_level(place, cell, runs)


def _repetitions(
    place: str, run: str, rows: Mapping[int, SheetRow]
) -> Iterator[ConfigProblem]:
    first: dict[int, int] = {}
    for line, row in rows.items():
        level = int(row.level)
        earlier = first.setdefault(level, line)
        if earlier != line:
            message = f"level {level} of {run} is in line {earlier} already"
            right = "another number in `run` for a repetition, or `use` no"
            key = f"line {line}, column level"
            yield ConfigProblem(place, key, message, right, "repeated")


def _mixtures(
    place: str, whose: str, rows: Mapping[int, SheetRow], columns: Sequence[str]
) -> Iterator[ConfigProblem]:
    for column in columns:
        lines: dict[str, list[int]] = {}
        for line, row in rows.items():
            lines.setdefault(str(getattr(row, column) or ""), []).append(line)
        if len(lines) > 1:
            kinds = " and ".join(
                f"{value or 'nothing'} ({_lines(numbers)})"
                for value, numbers in lines.items()
            )
            message = f"{whose} has {kinds}"
            right = "`use` no for all but one of them, or a scenario of its own for each, in the campaign's `scenarios`"
            yield ConfigProblem(place, f"column {column}", message, right, "mixture")


def _result_levels(rows: Mapping[int, SheetRow]) -> set[int]:
    return {int(row.level) for row in rows.values() if not row.problem}


def _without_common_level(
    place: str, cell: Cell, runs: Mapping[int, Mapping[int, SheetRow]]
) -> Iterator[ConfigProblem]:
    """Yield runs of a cell that have no level in common: they cannot be compared."""
    levels = {number: _result_levels(rows) for number, rows in runs.items()}
    if len(runs) > 1 and not set.intersection(*levels.values()):
        parts = [
            f"run {number} has {', '.join(map(str, sorted(levels[number])))}"
            for number in sorted(levels)
        ]
        message = f"the runs of {cell.path} have no level in common: {'; '.join(parts)}"
        right = "one number in `run` for levels of one run, or `use` no"
        yield ConfigProblem(place, "column run", message, right, "no_common_level")
