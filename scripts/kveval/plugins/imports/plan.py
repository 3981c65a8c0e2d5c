"""The runs that a campaign imports, as its sheet has them, and what each needs. No file is opened here."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kveval.campaign import sizing
from kveval.campaign.cell import Cell
from kveval.campaign.import_sheet import ImportSheet, SheetRow
from kveval.campaign.imports import ImportCampaign
from kveval.configuration.config import Config
from kveval.host.errors import Failure
from kveval.host.findings import pluralize
from kveval.host.hashing import content_hash
from kveval.stacks.arms import Platform
from kveval.stacks.registry import IMPORTED_SERVER
from kveval.workflow.elsewhere import RunElsewhere, RunsElsewhere

UNKNOWN_RELEASE = "0"
_SHOWN = 12


class LevelPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One level of a run to import; `error` is why the level gives nothing.

    `recording`: PCP archives, file -> its name in the recording; `recorded_as`: the path that names them in the sheet.
    """

    level: int
    report: str
    benchmark: int = 0
    recording: dict[str, str] = {}
    recorded_as: str = ""
    server_files: list[str] = []
    error: str = ""


class RunPlan(RunElsewhere, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that importing one run needs. `stamp` changes with every file that the run refers to.

    `model`: the keys of the catalogue's model that define a measurement; `budget`: the sizes of its CPU tier; `sheet`:
    the file that names the run; `vllm`: the version of its server; `arm`: what the results call its arm.
    """

    sheet: str
    vllm: str
    levels: list[LevelPlan]
    model: dict[str, Any]
    budget: dict[str, Any]
    tensor_parallel_size: int
    stamp: str
    arm: str
    hardware: str | None = None
    software: str | None = None
    replicas: int | None = None
    remarks: list[str] = msgspec.field(default_factory=list)
    copy: bool = False


class MissingFile(Failure):
    """A file that the sheet names was there a moment ago, and is not there now."""


def import_plan(config: Config) -> RunsElsewhere | None:
    """Return the runs of a campaign's sheet; None for a campaign without one. Raises MissingFile."""
    campaign, sheet = config.campaign, config.sheet
    if sheet is None or not isinstance(campaign, ImportCampaign):
        return None
    rows: dict[tuple[Cell, int], list[SheetRow]] = {}
    for row in sheet.imported.values():
        rows.setdefault((row.cell, int(row.run)), []).append(row)
    runs = [
        _run_plan(config, sheet, cell, run, rows[cell, run], copy=campaign.copy_imports)
        for cell, run in sorted(rows)
    ]
    summary = _summary(sheet, runs)
    return RunsElsewhere(
        runs,
        remarks="\n".join(_remarks(sheet, runs, summary)),
        summary=f"Imports: {summary}; {sheet.path} lists each",
        rules=Path(__file__).with_name("import.smk"),
    )


def _summary(sheet: ImportSheet, runs: Sequence[RunPlan]) -> str:
    """Say in one line what becomes of the sheet's rows."""
    fates = Counter(
        "left out" if row.use == "no" else "open"
        for row in sheet.rows.values()
        if not row.imported
    )
    rest = "".join(f", {count} {fate}" for fate, count in sorted(fates.items()))
    cells = pluralize(len({run.cell for run in runs}), "cell")
    of = f"{pluralize(len(runs), 'run')} of {cells}"
    return f"{pluralize(len(sheet.imported), 'level')} imported ({of}){rest}"


def _remarks(
    sheet: ImportSheet, runs: Sequence[RunPlan], summary: str
) -> Iterator[str]:
    """Say for the report, in Markdown, what is left out and what does not agree; the first of many."""
    yield f"{summary}; `{sheet.path.as_posix()}` lists each."
    counts = Counter(run.cell.path for run in runs)
    single = [path for path, count in counts.items() if count == 1]
    if single:
        names = ", ".join(single[:_SHOWN])
        yield f"- only one run, so no verdict: {names}{_more(len(single) - _SHOWN)}"
    reports: dict[str, list[str]] = {}
    for row in sheet.rows.values():
        for text in _texts(row):
            reports.setdefault(text, []).append(row.report)
    for text, (first, *others) in list(reports.items())[:_SHOWN]:
        yield f"- {text}: `{first}`{_more(len(others))}"
    if len(reports) > _SHOWN:
        yield f"- {len(reports) - _SHOWN} more remarks"


def _texts(row: SheetRow) -> list[str]:
    """Return what is to be said of a row."""
    if row.imported:
        problem = f"failed: {row.problem}" if row.problem else ""
        return [text for text in (problem, row.remarks) if text]
    reasons = "; ".join(text for text in (row.problem, row.remarks) if text)
    fate = "left out" if row.use == "no" else f"open: {', '.join(row.questions)}"
    return [f"{fate}: {reasons}" if reasons else fate]


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _run_plan(
    config: Config,
    sheet: ImportSheet,
    cell: Cell,
    run: int,
    rows: Sequence[SheetRow],
    *,
    copy: bool,
) -> RunPlan:
    model = config.catalogue.models[cell.model]
    rows = sorted(rows, key=lambda row: int(row.level))
    first = next(row for row in rows if not row.problem)
    vllm = next((row.vllm for row in rows if row.vllm), UNKNOWN_RELEASE)
    levels = [_level_plan(sheet, row) for row in rows]
    ranks = first.tensor_parallel_size or model.tensor_parallel_size
    per_token = sizing.kv_bytes_per_token(
        model.geometry, model.kv_cache_dtype, ranks, model.dtype
    )
    # What was measured elsewhere ran on GPUs; LMCache's form follows from the release.
    platform = Platform(
        vllm, lmcache=None, on_cpu=False, engine="local", block_size=16, served_name=""
    )
    required = IMPORTED_SERVER.required_counters(
        config.catalogue.scenarios[cell.scenario], platform
    )
    budget = sizing.Budget.from_blocks(per_token, cell.cpu_blocks, ranks=ranks)
    return RunPlan(
        sheet=sheet.path.as_posix(),
        cell=cell,
        run=run,
        vllm=vllm,
        required=[dict(counter) for counter in required],
        levels=levels,
        model=model.model_dump(
            mode="json",
            include={"hf_id", "geometry", "dtype", "kv_cache_dtype", "quantization"},
        ),
        budget=msgspec.structs.asdict(budget),
        tensor_parallel_size=ranks,
        stamp=content_hash([_stamp(path) for path in _paths(levels)], spaced=True),
        arm=first.arm or cell.scenario,
        hardware=first.hardware,
        software=first.software,
        replicas=first.replicas,
        remarks=list(dict.fromkeys(row.remarks for row in rows if row.remarks)),
        copy=copy,
    )


def _level_plan(sheet: ImportSheet, row: SheetRow) -> LevelPlan:
    report = sheet.file(row.report)
    if row.problem:
        return LevelPlan(level=int(row.level), report=report, error=row.problem)
    recording: dict[str, str] = {}
    for number, path in enumerate(sheet.files(row.recording)):
        for file, name in _archives(path).items():
            # Archives of several folders may have one name.
            recording[file] = f"{number}/{name}" if number else name
    return LevelPlan(
        level=int(row.level),
        report=report,
        benchmark=row.benchmark,
        recording=recording,
        recorded_as=row.recording,
        server_files=sheet.files(row.server_files),
    )


def _archives(path: str) -> dict[str, str]:
    """Return the files of a recording, each with its name there; those in hidden folders are none."""
    if not Path(path).is_dir():
        return {path: path.rpartition("/")[2]}
    files = {}
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = f"{folder}/{name}"
            files[file] = file.removeprefix(f"{path}/")
    return files


def _paths(levels: Sequence[LevelPlan]) -> Iterator[str]:
    for level in levels:
        yield from level.recording
        if not level.error:
            yield level.report
        yield from level.server_files


def _stamp(path: str) -> list[Any]:
    """Return what changes where a file has another content."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise MissingFile(f"{path}: cannot be read ({error.strerror})") from error
    return [path, status.st_size, status.st_mtime_ns, status.st_ino]
