"""`kveval history`: adds a campaign's results to the history, and shows what it has over builds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from kveval.plugins.builds.history_figure import write_history
from kveval.plugins.builds.history_files import add_to_history, read_history
from kveval.plugins.builds.series import build_series, builds_table, history_rows
from kveval.store.run_file import collected_runs
from kveval.tables.csv_files import read_table
from kveval.workflow.command.campaign import CampaignContext
from kveval.workflow.command.output import Output

_TABLES = ("complete_metrics", "comparison", "peak_throughput_all")


def update_history(
    analysis: Path, campaign: str, folders: Sequence[Path], words: Sequence[str]
) -> str:
    """Add a campaign's tables, if all exist, to the first of the folders; return a line that says what was done.

    `words`: those that name the campaign in a command line of snakemake.
    """
    tables = [analysis / f"{name}.csv" for name in _TABLES]
    runs = analysis / "runs.jsonl.zst"
    lacking = [path for path in (*tables, runs) if not path.exists()]
    folders[0].mkdir(parents=True, exist_ok=True)
    if lacking:
        command = f"snakemake --cores 4 {shlex.join(['report', *words])}"
        return f"Nothing of {campaign} is added: {lacking[0]} is missing; `{command}` makes it."
    complete, comparison, peaks = map(read_table, tables)
    rows = history_rows(complete, comparison, peaks, collected_runs(runs), campaign)
    added = add_to_history(folders[0], rows)
    return (
        f"Added to the history: {added}, {len(rows)} values."
        if added
        else f"The history has {campaign} already."
    )


def show_history(
    folders: Sequence[Path], program: str | None, output: Path
) -> Iterator[str]:
    """Write OUTPUT/builds.csv and a figure for each metric, and yield lines of text that name them.

    `program`: the program whose versions are the builds, None for the server.
    """
    series = build_series(read_history(folders), program)
    yield f"{len(series)} series (a metric of a cell at its level, on one kind of hardware)."
    if not series:
        yield f"  No sound run{f' with {program}' if program else ''} is in {', '.join(map(str, folders))}."
        return
    figures = write_history(series, output)
    builds_table(series).to_csv(output / "builds.csv", index=False)
    yield from (
        "",
        f"Table: {output / 'builds.csv'}",
        *(f"Figure: {path}" for path in figures),
    )


def show_campaign_history(
    context: CampaignContext,
    *,
    folders: Sequence[Path],
    program: str | None,
    as_json: bool,
) -> None:
    """Add the campaign's results to the first of the folders, and show them over builds."""
    with Output.to(context.logs / "history.log", as_json=as_json) as output:
        name = context.config.campaign.name
        analysis, words = context.results / "analysis", context.snakemake_words
        lines = [update_history(analysis, name, folders, words)]
        output.line(lines[0])
        for line in show_history(folders, program, context.logs / "history"):
            lines.append(line)
            output.line(line)
        output.document({"lines": lines})
