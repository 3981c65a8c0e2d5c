"""`kveval repeat --disturbed`: which blocks other programs disturbed, and the command that measures others for them."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.analysis.disturbed_blocks import DisturbedBlocks
from kveval.host import hardware
from kveval.host.findings import pluralize
from kveval.store.run_file import POINTER, Run, RunFileError, pointed_run
from kveval.workflow.command.campaign import STORE, CampaignContext
from kveval.workflow.command.output import Output
from kveval.workflow.command.planning import plan_of
from kveval.workflow.planning.order import campaign_pointer
from kveval.workflow.planning.plan import Plan
from kveval.workflow.planning.stored import StoreIndex
from kveval.workflow.planning.text import PlanText

_LONG_S = 7200.0


@dataclass(frozen=True)
class _Repeats:
    """The further blocks of a campaign.

    `context`: the campaign with those blocks; `asked`: the runs that its file asks for; `measured`: its runs so far.
    """

    context: CampaignContext
    asked: int
    measured: Sequence[Run]
    disturbed: DisturbedBlocks

    @property
    def runs(self) -> int:
        """The runs of a cell with the further ones."""
        return self.disturbed.planned + self.disturbed.needed

    @property
    def further(self) -> list[int]:
        """The numbers of the further runs of every cell."""
        return [*range(self.disturbed.planned + 1, self.runs + 1)]

    @property
    def command(self) -> list[str]:
        """The command line that measures them, and reports all runs."""
        return ["snakemake", "--cores", "4", "report", *self.context.snakemake_words]


def show_repeats(context: CampaignContext, *, as_json: bool) -> None:
    """Print the disturbed runs of a campaign, what would be measured in place of their blocks, and how long it takes."""
    name = context.config.campaign.name
    with Output.to(context.logs / "repeat.log", as_json=as_json) as output:
        reason = _reason_for_none(context)
        if reason:
            output.line(f"Campaign {name}: {reason}")
            output.document({"campaign": name, "disturbed": [], "further": []})
            return
        index = StoreIndex.read(STORE)
        repeats = _repeats(context, index)
        plan = _plan(repeats.context, index) if repeats.further else None
        seconds = 0.0 if plan is None else _seconds(plan, index)
        for line in _lines(repeats, seconds):
            output.line(line)
        output.document(_document(repeats, seconds))


def _reason_for_none(context: CampaignContext) -> str:
    """Return why no block can be added to those of a campaign; "" if one can."""
    if context.config.sheet is not None or context.config.compared:
        return "it measures nothing itself; repeat in the campaigns that it reads"
    if context.config.campaign.bridges:
        return (
            "it has bridges, whose runs are numbered after the others, so that none can be added to these. Measure"
            " cells and baselines together once more: `rounds` under `bridges`"
        )
    return ""


def _repeats(context: CampaignContext, index: StoreIndex) -> _Repeats:
    """Return what to measure further, after what was measured by the campaign's `runs` or by a larger number."""
    asked = context.config.campaign.runs
    planned = max(asked, _most_runs(context))
    present = _with_runs(context, planned)
    runs = []
    for run in _plan(present, index).of("there"):
        # One that cannot be read is missing, which `verify` says.
        with contextlib.suppress(RunFileError):
            pointer = campaign_pointer(present.config, run.cell, run.run)
            runs.append(pointed_run(pointer))
    disturbed = DisturbedBlocks.from_runs(runs, planned)
    complete = _with_runs(context, planned + disturbed.needed)
    return _Repeats(complete, asked, runs, disturbed)


def _with_runs(context: CampaignContext, runs: int) -> CampaignContext:
    if runs == context.config.campaign.runs:
        return context
    return context.changed(f"runs={runs}")


def _most_runs(context: CampaignContext) -> int:
    """Return the highest number of a run that a cell of the campaign has; 0 without any."""
    names = [
        path.parent.name.removeprefix("run-")
        for cell in context.config.cells
        for path in (context.results / cell.path).glob(f"run-*/{POINTER}")
    ]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _plan(context: CampaignContext, index: StoreIndex) -> Plan:
    local = context.config.campaign.engine == "local"
    return plan_of(context, index, hardware.probe()["fingerprint"] if local else None)


def _seconds(plan: Plan, index: StoreIndex) -> float:
    """Return how long all that a plan measures takes, seconds."""
    costs = PlanText(plan, index, os.cpu_count() or 1).costs
    return sum(
        costs[cell].seconds * len(runs) for cell, runs in plan.to_measure.items()
    )


def _lines(repeats: _Repeats, seconds: float) -> Iterator[str]:
    disturbed, name = repeats.disturbed, repeats.context.config.campaign.name
    if not repeats.measured:
        yield f"Campaign {name}: no run is measured yet"
        return
    measured = pluralize(len(repeats.measured), "measured run")
    if not any(map(_is_known, repeats.measured)):
        yield f"Campaign {name}: what other programs took is known of none of {measured}; it is of runs on this host"
        return
    if not disturbed.runs:
        yield f"Campaign {name}: other programs disturbed none of {measured}; nothing to repeat"
        return
    yield (
        f"Campaign {name}: other programs disturbed {len(disturbed.runs)} of {measured},"
        f" in {len(disturbed.blocks)} of {pluralize(disturbed.planned, 'block')}"
    )
    for run in disturbed.runs:
        share = f"up to {run.others_percent:.0f} % of the processors' time"
        yield f"  block {run.run}: {run.cell.path}, run {run.run}, {share}"
    if repeats.further:
        yield from _further_lines(repeats, seconds)
    else:
        quiet = pluralize(disturbed.quiet, "block")
        yield f"{quiet} without such a run: enough for a verdict, nothing to repeat"
        if repeats.runs > repeats.asked:
            yield "A report of all of them:"
            yield f"  {_command(repeats)}"
    if repeats.runs > repeats.asked:
        yield f"`runs: {repeats.runs}` in the campaign's file keeps them in later reports"


def _is_known(run: Run) -> bool:
    """Whether it was recorded what other programs took of the processors."""
    return any(level.others_cpu_percent is not None for level in run.levels)


def _further_lines(repeats: _Repeats, seconds: float) -> Iterator[str]:
    cells = len(repeats.context.config.cells)
    numbers = " and ".join(map(str, repeats.further))
    blocks = pluralize(len(repeats.further), "further block")
    runs = pluralize(cells * len(repeats.further), "run")
    yield (
        f"{blocks}: run {numbers} of every cell, {runs}; all that is missing takes about {_duration(seconds)}."
        " What is measured stays in the report, and no run is repeated because of its result"
    )
    yield "Once the machine is quiet:"
    yield f"  {_command(repeats)}"


def _command(repeats: _Repeats) -> str:
    here = Path.cwd() == repeats.context.start
    folder = "" if here else f"cd {shlex.quote(str(Path.cwd()))} && "
    return f"{folder}{shlex.join(repeats.command)}"


def _duration(seconds: float) -> str:
    if seconds >= _LONG_S:
        return f"{seconds / 3600:.1f} h"
    return pluralize(max(1, round(seconds / 60)), "minute")


def _document(repeats: _Repeats, seconds: float) -> dict[str, Any]:
    disturbed = [
        {
            "cell": run.cell.path,
            "run": run.run,
            "others_percent": run.others_percent,
        }
        for run in repeats.disturbed.runs
    ]
    return {
        "campaign": repeats.context.config.campaign.name,
        "disturbed": disturbed,
        "quiet_blocks": repeats.disturbed.quiet,
        "further": repeats.further,
        "runs": repeats.runs,
        "seconds": seconds,
        "command": repeats.command if repeats.further else [],
    }
