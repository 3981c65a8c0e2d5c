"""`kveval show`: one stored cell, at once, as text or as one JSON document."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from kveval.campaign.size import Size
from kveval.workflow.command.cell_document import SEVERITIES, Document, cell_document
from kveval.workflow.command.cell_lookup import RESULTS, find_cell
from kveval.workflow.command.checkout import Checkout
from kveval.workflow.command.output import print_document

_UNKNOWN = "-"
_SOURCES = {
    "cold": "computed",
    "device": "from the device's cache",
    "tier": "from the tier",
}
_ACTIVE = {True: "active", False: "not active", None: _UNKNOWN}


def show_cell(name: str, directory: Path | None, *, as_json: bool) -> None:
    """Print what is stored of a cell. Raises UnknownCell.

    `directory`: the folder that has results; by default the nearest one, from the present one upwards, else the
    checkout that kveval lies in.
    """
    working = _nearest_with_results() if directory is None else directory.absolute()
    document = cell_document(find_cell(name, working))
    if as_json:
        print_document(document)
        return
    width = shutil.get_terminal_size((120, 24)).columns
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    for part in (_head, _runs, _levels, _one_request, _activity, _checks, _next):
        part(document, console)


def _nearest_with_results() -> Path:
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / RESULTS).is_dir():
            return folder
    return Checkout.from_folders(here).root or here


def _head(document: Document, console: Console) -> None:
    cell = document["cell"]
    console.print(cell["path"], style="bold", end="  ")
    console.print(_size(cell))
    console.print(f"measurement {', '.join(document['measurements']) or _UNKNOWN}")
    suffix = ", tables of the runs so far" if document["so_far"] else ""
    if document["results"]:
        console.print(f"results     {_short(document['results'])}{suffix}")
    else:
        console.print("results     none here: the cell is only in the store")
    for folder in document["elsewhere"]:
        console.print(f"also in     {_short(folder)}")


def _size(cell: Document) -> str:
    if not cell["cpu_blocks"]:
        return "no CPU tier"
    if cell["tier_bytes"] is None:
        return f"CPU tier of {cell['cpu_blocks']:,} blocks"
    return f"CPU tier of {Size(cell['cpu_blocks'], cell['tier_bytes'])}"


def _runs(document: Document, console: Console) -> None:
    table = _table("run", "started (UTC)", "finished (UTC)", "host", "place")
    for run in document["runs"]:
        table.add_row(
            str(run["run"]),
            _time(run["started"]),
            _time(run["finished"]),
            run["host"]["fingerprint"] or _UNKNOWN,
            _short(run["place"]),
        )
    _print_table("Runs", table, console)
    for line in dict.fromkeys(_conditions(run) for run in document["runs"]):
        console.print(Padding(line, (0, 2), expand=False))
    for message in document["unreadable"]:
        console.print(Padding(f"unreadable: {message}", (0, 2), expand=False))


def _conditions(run: Document) -> str:
    """Return where and what a run was, in a line that is equal for runs alike."""
    host = run["host"]
    machine = f"{host['cpus']} x {host['cpu_model']}" if host["cpus"] else run["engine"]
    versions = [f"{name} {version}" for name, version in run["versions"].items()]
    return ", ".join(
        [
            f"{host['fingerprint'] or run['engine']}: {machine}",
            *host["gpus"],
            f"{run['weights']} weights",
            *versions,
        ]
    )


def _levels(document: Document, console: Console) -> None:
    peak = document["peak"]
    if not any("throughput_tok_s" in level for level in document["levels"]):
        _print_table("Levels measured", _bare_levels(document["levels"]), console)
        if document["not_computed"]:
            console.print(Padding(document["not_computed"], (0, 2), expand=False))
        return
    unit = _unit(document["levels"])
    table = _table(
        unit,
        *("runs", "tok/s", "TTFT p50 ms", "TTFT p90 ms", "ITL p50 ms", "errors"),
        *("device hits", "tier hits", ""),
        right=9,
    )
    for level in document["levels"]:
        table.add_row(
            _figure(level["level"] if unit != "req/s" else level["rate_req_s"]),
            str(level["runs"]),
            _figure(level["throughput_tok_s"]),
            _figure(level["ttft_ms_p50"]),
            _figure(level["ttft_ms_p90"]),
            _figure(level["itl_ms_p50"]),
            f"{level['requests_errored']:,}",
            _percent(level["prefix_hit_ratio"]),
            _percent(level["external_hit_ratio"]),
            _remark(level, peak),
        )
    _print_table("Levels, means over runs", table, console)
    if peak is not None:
        console.print(Padding(_peak_text(peak), (0, 2), expand=False))


def _unit(levels: Sequence[Document]) -> str:
    """Return what the levels are: streams in a closed loop, requests per second in an open one."""
    if any(level["streams"] == level["level"] for level in levels):
        return "streams"
    if any(level["rate_req_s"] is not None for level in levels):
        return "req/s"
    return "level"


def _bare_levels(levels: Iterable[Document]) -> Table:
    table = _table("level", "runs", "failed in run", right=2)
    for level in levels:
        failed = ", ".join(map(str, level["failed_runs"]))
        table.add_row(f"{level['level']:,}", str(level["runs"]), failed)
    return table


def _remark(level: Document, peak: Document | None) -> str:
    remarks = ["peak"] if peak is not None and level["level"] == peak["level"] else []
    if level["failed_runs"]:
        remarks.append(
            f"checks failed in run {', '.join(map(str, level['failed_runs']))}"
        )
    if "none" in level["activity"]:
        remarks.append("tier not active")
    return "; ".join(remarks)


def _peak_text(peak: Document) -> str:
    text = f"Peak: {_figure(peak['throughput_tok_s'])} tok/s at level {peak['level']:,}"
    low, high = peak["throughput_low_tok_s"], peak["throughput_high_tok_s"]
    if low is not None and high is not None:
        text += f" (95 %: {_figure(low)} to {_figure(high)}, {peak['runs']} runs)"
    return text if peak["bracketed"] else f"{text}; no level beyond it was measured"


def _one_request(document: Document, console: Console) -> None:
    if not document["one_request"]:
        return
    table = _table(
        *("TTFT p50 ms", "least", "most", "prompt, tokens", "from caches", "prompt"),
        *("",),
        right=5,
    )
    for row in document["one_request"]:
        table.add_row(
            *(_figure(row[f"ttft_ms_{name}"]) for name in ("median", "least", "most")),
            _figure(row["prompt_tokens"]),
            _figure(row["served_tokens"]),
            _SOURCES[row["source"]],
            row["reason"],
        )
    _print_table("One request alone", table, console)


def _activity(document: Document, console: Console) -> None:
    if not document["activity"]:
        if document["runs"]:
            console.print("\nActivity: this arm has no counter that would prove it")
        return
    table = _table("run", "counter", "rose by", "at least", "", right=1)
    for proof in document["activity"]:
        table.add_row(
            str(proof["run"]),
            proof["counter"],
            _figure(proof["moved"]),
            _figure(proof["at_least"]),
            _ACTIVE[proof["active"]],
        )
    _print_table("Activity of the arm", table, console)


def _checks(document: Document, console: Console) -> None:
    """Print what failed or qualifies the numbers: one line for each check, with its first message."""
    outcomes: dict[tuple[str, str], list[Document]] = defaultdict(list)
    for outcome in document["checks"]:
        outcomes[outcome["severity"], outcome["check"]].append(outcome)
    if not outcomes:
        console.print("\nChecks: nothing to remark")
        return
    table = _table("", "check", "where", "what", right=0)
    for severity in SEVERITIES:
        for (_, check), several in _of_severity(outcomes, severity):
            table.add_row(severity, check, _where(several), several[0]["message"])
    _print_table("Checks that failed or qualify the numbers", table, console)


def _of_severity(
    outcomes: dict[tuple[str, str], list[Document]], severity: str
) -> list[tuple[tuple[str, str], list[Document]]]:
    return [(key, several) for key, several in outcomes.items() if key[0] == severity]


def _where(outcomes: Sequence[Document]) -> str:
    """Return the place of the first outcome, and how many more there are."""
    first = outcomes[0]
    place = "the campaign's tables"
    if first["run"] is not None:
        place = f"run {first['run']}, level {first['level']:,}"
    return place if len(outcomes) == 1 else f"{place}, and {len(outcomes) - 1} more"


def _next(document: Document, console: Console) -> None:
    _print_title("Next", console)
    for step in document["next"]:
        console.print(Padding(step["command"], (0, 2), expand=False), style="bold")
        console.print(Padding(step["why"], (0, 6), expand=False))


def _table(*columns: str, right: int = 1) -> Table:
    """Return a table of which the first `right` columns are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for position, column in enumerate(columns):
        table.add_column(
            column, justify="right" if position < right else "left", overflow="fold"
        )
    return table


def _print_table(title: str, table: Table, console: Console) -> None:
    _print_title(title, console)
    console.print(Padding(table, (0, 2), expand=False))


def _print_title(title: str, console: Console) -> None:
    console.print()
    console.print(title, style="bold")


def _short(path: str) -> str:
    """Return a path as seen from the present folder, if it is below."""
    here = Path.cwd()
    return (
        str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
    )


def _time(text: str) -> str:
    """Return a time of run.json to the minute."""
    return text[:16].replace("T", " ")


def _figure(value: float | None) -> str:
    """Return a number to three figures, or whole from 100 on."""
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{100 * share:.0f} %"
