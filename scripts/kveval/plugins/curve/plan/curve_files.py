"""The files and the text of `kveval curve`: the share of a load that caches of every size serve, and the gain."""

from __future__ import annotations

import csv
import importlib.util
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kveval.campaign.cell import Cell
from kveval.campaign.sizing import gib
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.host.disturbance import DISTURBED_PERCENT
from kveval.host.findings import pluralize
from kveval.load import levels as workloads
from kveval.load.trace_file import requests_of
from kveval.load.workload import Workload
from kveval.plugins.curve.plan.answer_times import AnswerTime
from kveval.plugins.curve.plan.curves import (
    DRAWS,
    LevelCurves,
    draw_error,
    level_curves,
)
from kveval.plugins.curve.plan.fit import fit_lines
from kveval.plugins.curve.plan.loading import loading_lines
from kveval.plugins.curve.simulation.cells import (
    NOTHING_POINTS,
    mean_prompt_tokens,
    needed_sizes,
    order_is_assumed,
    serving_of,
    step_tokens,
    worst_order_is_assumed,
)
from kveval.stacks.tier_layout import needed_size
from kveval.store.run_file import Run
from kveval.tables.disturbed_blocks import blocks_to_add
from kveval.workflow.planning.stored import StoreIndex

if TYPE_CHECKING:
    from kveval.plugins.curve.plan.benefits import LevelBenefits, StoredBenefits
    from kveval.plugins.curve.predicted.benefit import (
        Basis,
        Benefit,
        Interval,
        MeasuredLevel,
    )

_PREDICTING = ("pandas", "scipy")
# From then on the curves say where they are.
_SILENT_S = 2.0
_ALIKE = 0.05
# The last digit of a share.
_PRINTED = 0.001
# Of "1,024 GiB (1,000,000 blocks)".
_SIZE_WIDTH = 29
_PREDICTED = tuple(
    f"{name}{end}"
    for name in ("throughput_percent", "ttft_ms_p50")
    for end in ("", "_low", "_high")
)


class CurveRow(NamedTuple):
    """A cell at a level: percent of the prompt tokens served, least and most, and percentage points from the tier."""

    model: str
    level: int
    arm: str
    cpu_blocks: int
    gib: float
    served_percent: float | None
    served_percent_most: float | None
    adds_points: float | None


class CurveText:
    """The answer of `kveval curve`: its lines, in the order in which they become known, its table and its figure.

    `words`: those that name the campaign in a command line of snakemake; `say`: is told of each level that is computed.
    """

    def __init__(
        self,
        config: Config,
        store: StoreIndex,
        words: Sequence[str],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config = config
        self.store = store
        self.words = words
        self._say = say

    @cached_property
    def curves(self) -> Sequence[LevelCurves]:
        """The curves of every model and level."""
        found, began = [], time.monotonic()
        unit = workloads.level_unit(self.config.workload.definition)
        for curves in level_curves(self.config, self.store):
            found.append(curves)
            if time.monotonic() - began > _SILENT_S:
                self._say(f"computed: {curves.model}, {curves.level} {unit}")
        return found

    def lines(self) -> Iterator[str]:
        """Yield the answer line by line; the gains, which take seconds, each after the curves of its level."""
        yield from part_lines(self.config.workload.definition)
        yield from fit_lines(self.config, self.curves, self.store)
        yield from loading_lines(self.config, self.store, self.words)
        yield from load_lines(self.config)
        for curves in self.curves:
            yield from level_lines(self.config, curves)
            if self._missing_packages:
                continue
            bought = self._benefits_at(curves)
            yield from benefit_lines(
                self.config, curves, bought, self.store, self.words
            )
        if self._missing_packages:
            yield ""
            packages = " and ".join(self._missing_packages)
            yield f"No gain is predicted without {packages}: pip install '.[workflow]'"

    def rows(self) -> Iterator[dict[str, str | float | None]]:
        """Yield a row for each cell and level, with the predicted gain where there is a measurement to predict it from."""
        for curves in self.curves:
            bought = self._benefits_at(curves)
            for cell, row in zip(
                curves.cells, curve_rows(self.config, curves), strict=True
            ):
                benefit = None if bought is None else bought.cells.get(cell)
                yield row._asdict() | dict.fromkeys(_PREDICTED) | _predictions(benefit)

    def write_table(self, table: Path) -> None:
        """Write the rows into a CSV file."""
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, CurveRow._fields + _PREDICTED)
            writer.writeheader()
            writer.writerows(self.rows())

    def draw(self, figure: Path) -> str:
        """Draw the curves into a file, if matplotlib is installed; return the line that says so."""
        if importlib.util.find_spec("matplotlib") is None:
            return "Figure: none, because matplotlib is not installed"
        # With matplotlib, which takes a second, and is no part of a bare installation.
        from kveval.plugins.curve.plan.curve_figure import (  # noqa: PLC0415
            write_curve_figure,
        )

        write_curve_figure(self.config, self.curves, figure)
        return f"Figure: {figure}"

    def _benefits_at(self, curves: LevelCurves) -> LevelBenefits | None:
        """Return the predicted gains at a level, None where nothing is stored to predict them from."""
        return None if self._benefits is None else self._benefits.at(curves)

    @cached_property
    def _missing_packages(self) -> Sequence[str]:
        """The packages that predicting a gain from what is stored needs, and a bare installation lacks."""
        if not self.store.index:
            return []
        return [name for name in _PREDICTING if importlib.util.find_spec(name) is None]

    @cached_property
    def _benefits(self) -> StoredBenefits | None:
        if not self.store.index or self._missing_packages:
            return None
        # Slow, and no part of a bare installation.
        from kveval.plugins.curve.plan.benefits import StoredBenefits  # noqa: PLC0415

        return StoredBenefits(self.config, self.store)


def _predictions(benefit: Benefit | None) -> dict[str, float]:
    """Return the columns of a predicted gain; none without one."""
    if benefit is None:
        return {}
    values = (*benefit.throughput_percent, *benefit.ttft_ms_p50)
    return dict(zip(_PREDICTED, values, strict=True))


def curve_rows(config: Config, curves: LevelCurves) -> Iterator[CurveRow]:
    """Yield a row for each cell."""
    for cell in curves.cells:
        served = curves.hit_share_range(cell)
        low, high = (
            (None, None) if served is None else (100 * served[0], 100 * served[1])
        )
        size = gib(config.specification(cell).budget.tier_bytes)
        adds = curves.adds_range(cell)
        yield CurveRow(
            curves.model,
            curves.level,
            cell.scenario,
            cell.cpu_blocks,
            size,
            low,
            high,
            None if adds is None else adds[1],
        )


def part_lines(workload: Workload) -> Iterator[str]:
    """Yield which part of a trace each level replays, where that is not all of it."""
    if workload.content is None or workload.profile != "trace":
        return
    rows = requests_of(workload.content)
    lasting_s = rows[-1].timestamp
    for level, count in zip(
        workload.given_levels, workload.content.requests, strict=True
    ):
        if count < len(rows):
            yield (
                f"A part of the trace: at {level} % the first {workload.seconds * level / 100:,.0f} s of {lasting_s:,.0f} s,"
                f" {count:,} of {len(rows):,} requests; what follows is of this part"
            )


def load_lines(config: Config) -> Iterator[str]:
    """Yield what the load is, and what the curves assume of it."""
    workload = config.workload.definition
    yield f"Campaign {config.campaign.name}: shares of the prompt tokens that its caches can serve, from the requests"
    yield f"themselves: {workloads.describe_requests(workload)}."
    if order_is_assumed(workload):
        yield "Approximate: assumes that each conversation ends before the next begins. Where answers take longer than"
        yield "the time between arrivals, conversations interleave, and a later turn needs a larger cache."
    if worst_order_is_assumed(workload):
        yield "Approximate: assumes that the conversations of a closed loop take their turns strictly one after the"
        yield "other, the worst order for a cache that drops what was used least recently: it may serve more."
    if workloads.has_pauses(workload):
        yield "Approximate: the pauses, and how long answers take, decide whose questions come between two of one user."
        yield "All answers of an arm are taken to last equally long."


def level_lines(config: Config, curves: LevelCurves) -> Iterator[str]:
    """Yield what each cell's caches serve at a level, and the sizes that add most of what any adds."""
    workload, found = config.workload.definition, curves.widest
    unit = workloads.level_unit(workload)
    yield ""
    yield f"{curves.model}, {curves.level} {unit}"
    yield from _answer_lines(curves)
    worst = max(
        (found.device, *(one.tier for one in curves.cells.values() if one.tier)),
        key=lambda one: one.error,
    )
    if worst.sampled < 1:
        error = f"standard error {100 * worst.error:.2f} points at most"
        yield f"  from a sample of one block in {1 / worst.sampled:,.0f}: {error}"
    specification = config.specification(curves.widest_cell)
    block = serving_of(specification).block
    step = step_tokens(workload, curves.level, block)
    if step > block:
        least = 50 * step / mean_prompt_tokens(workload, curves.level)
        yield f"  in steps of {step} tokens, as there are very many: shares may be {least:.1f} points too low"
    drawn = draw_error(config, curves)
    if drawn >= _PRINTED / 2:
        spread = f"±{100 * drawn:.1f} points (standard deviation of {DRAWS} draws)"
        yield f"  of one draw of the load; others differ by up to {spread}"
    if found.device_tokens is None:
        yield "  device alone        not known: no server of this model has reported how much its device holds"
    else:
        yield from _device_lines(curves)
    for row in curve_rows(config, curves):
        if not row.cpu_blocks:
            continue
        cell = Cell(row.model, row.arm, row.cpu_blocks)
        size = config.specification(cell).budget.size
        name = f"{cell.arm:<28} {size!s:<{_SIZE_WIDTH}}"
        if (
            row.served_percent is None
            or row.served_percent_most is None
            or row.adds_points is None
        ):
            tier = curves.cells[cell]
            yield f"  {name}  at least {_percent(tier.device.share(tier.tier_tokens * tier.usable[0]))}"
            continue
        low, high, adds = row.served_percent, row.served_percent_most, row.adds_points
        least = (curves.adds_range(cell) or (adds, adds))[0]
        points = f"adds {_spread(least, adds)} points"
        yield f"  {name}  {_spread(low, high)} %, {'adds nothing' if adds < NOTHING_POINTS else points}"
    yield f"  {'of any size':<{28 + 1 + _SIZE_WIDTH}}  {_percent(found.device.ceiling)}: no cache serves a first visit"
    curve = found.tier or found.device
    sizes = needed_sizes(curve)
    if not sizes:
        why = (
            "The device serves everything that is repeated"
            if curve.ceiling
            else "Nothing is repeated"
        )
        yield f"  {why}: no tier adds anything"
        return
    cells = [config.specification(cell) for cell in curves.cells]
    steps = ", ".join(
        f"{100 * part:.0f} % with {needed_size(cells, tokens, curves.level)}"
        for part, tokens in sizes
    )
    what = "cache serves" if found.tier is None else "tier adds"
    yield f"  Of what any {what}, {100 * (curve.ceiling - curve.base):.1f} points: {steps}"


def _answer_lines(curves: LevelCurves) -> Iterator[str]:
    """Yield how long answers take, where users pause after them, and what that rests on."""
    by_source: dict[str, dict[str, list[str]]] = {}
    for cell, answer in curves.answers.items():
        arm = cell.arm if cell.cpu_blocks else cell.scenario
        times = by_source.setdefault(answer.source, {})
        times.setdefault(_seconds(answer), []).append(arm)
    for source, times in by_source.items():
        each = [f"{time} s in {', '.join(arms)}" for time, arms in times.items()]
        if len(by_source) == len(each) == 1:
            each = [f"{time} s" for time in times]
        yield f"  answers of {'; '.join(each)}, {source}"


def _seconds(answer: AnswerTime) -> str:
    least, most = (
        f"{seconds:,.1f}" if seconds >= 1 else f"{seconds:.2g}"
        for seconds in (answer.least_s, answer.most_s)
    )
    return least if least == most else f"{least} to {most}"


def _device_lines(curves: LevelCurves) -> Iterator[str]:
    """Yield what the device alone serves, and where an estimate of its size is from."""
    device, shares = curves.device, curves.device_hit_range
    if device is None or shares is None:
        return
    tokens = f"{'about ' if device.estimated else ''}{device.tokens:,.0f} tokens"
    served = _spread(100 * shares[0], 100 * shares[1])
    yield f"  {'device alone':<28} {tokens:<{_SIZE_WIDTH}}  {served} %"
    if device.estimated:
        yield f"    {device.low_tokens:,} to {device.high_tokens:,} tokens, {device.source}"


def _spread(low: float, high: float) -> str:
    return f"{high:.1f}" if high - low < _ALIKE else f"{low:.1f} to {high:.1f}"


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.1f} %"


def benefit_lines(
    config: Config,
    curves: LevelCurves,
    bought: LevelBenefits | None,
    store: StoreIndex,
    words: Sequence[str],
) -> Iterator[str]:
    """Yield the gain from the tiers at a level; without a measurement to predict it from, how to make one.

    `words`: those that name the campaign in a command line of snakemake.
    """
    tiers = [cell for cell, one in curves.cells.items() if one.tier_tokens]
    if not tiers:
        return
    if bought is None:
        base = config.last_baseline(tiers[0]) or tiers[0]
        yield f"  To predict the gain, {_basis_step(config, base, store, words)}"
        return
    alone = bought.basis.levels[curves.level]
    throughput, mean, median = _figures(alone)
    yield f"  The gain, predicted from {bought.basis.cell.path} as measured (in brackets: 90 % of the simulations):"
    figures = f"{throughput:,.1f} tok/s, TTFT p50 {median:,.0f} ms, mean {mean:,.0f} ms"
    yield f"  {bought.basis.cell.scenario:<28} {figures}"
    for cell, benefit in bought.cells.items():
        seen = bought.measured.get(cell)
        measured = f"; measured {_against(seen, alone)}" if seen else ""
        yield f"  {cell.arm:<28} {_predicted(benefit)}{measured}"
    if bought.knee is not None:
        yield from _answer(config, curves, bought, *bought.knee)
    grounds = "; ".join(_grounds(bought.basis, config.specification(tiers[0])))
    yield f"  Based on {grounds}."
    stored = store.get(config.measurement_id(bought.basis.cell)).places
    left_out = sorted(stored.keys() - set(bought.basis.runs))
    if left_out:
        yield (
            f"  Not read: {_runs_named(left_out)}, disturbed or more than are simulated; the report has its own."
        )


def _basis_step(
    config: Config, base: Cell, store: StoreIndex, words: Sequence[str]
) -> str:
    """Return how to get a run of a cell without a tier from which a gain can be predicted."""
    stored = store.get(config.measurement_id(base))
    runs = [run for number in stored.places for run in stored.runs(number)]
    shares = [run.others_percent for run in runs]
    if shares and min(shares) > DISTURBED_PERCENT:
        count = pluralize(len(shares), "stored run")
        return (
            f"measure {base.path} again on a quiet machine, because other programs took {min(shares):.0f} % of the"
            f" processors or more in each of its {count}: {_more_blocks(config, runs, words)}"
        )
    target = f"{config.campaign.results}/{base.path}/peak.csv"
    command = f"snakemake --cores 4 {shlex.join([target, *words])}"
    return f"measure a run without a tier, undisturbed by other programs: {command}"


def _more_blocks(config: Config, disturbed: Sequence[Run], words: Sequence[str]) -> str:
    """Return the campaign's key and the command that measure blocks in place of those of a cell's disturbed runs."""
    asked = config.campaign.runs
    if config.campaign.bridges:
        # Their runs are numbered after the others, so that none can be added to these.
        return "`rounds` under `bridges`"
    planned = max(asked, *(run.run for run in disturbed))
    runs = planned + blocks_to_add(disturbed, planned)
    command = ["snakemake", "--cores", "4", "report", *words]
    if runs == asked:
        return shlex.join(command)
    option = [] if "--config" in words else ["--config"]
    return f"`runs: {runs}`, {shlex.join([*command, *option, f'runs={runs}'])}"


def _answer(
    config: Config,
    curves: LevelCurves,
    bought: LevelBenefits,
    tokens: int,
    benefit: Benefit,
) -> Iterator[str]:
    at = f"{curves.level} {workloads.level_unit(config.workload.definition)}"
    cells = [config.specification(cell) for cell in curves.cells]
    size = needed_size(cells, tokens, curves.level)
    yield f"  {size} of host memory serve 90 % of what a tier of any size could, at {at}:"
    yield f"  predicted {_predicted(benefit)}."


def _predicted(benefit: Benefit) -> str:
    gain, ttft = benefit.throughput_percent, benefit.ttft_ms_p50
    if not benefit.has_effect:
        # Only what the device and the tier serve is simulated, and a tier's copies.
        return "no gain: it serves nothing more; what it costs by being there is not predicted, and a run measures it"
    text = (
        f"throughput {_ranged(gain, '+.0f')} %, TTFT p50 {_ranged(ttft, ',.0f')} ms, "
    )
    text += f"mean {_ranged(benefit.ttft_ms_mean, ',.0f')} ms"
    return text + (
        ", and requests arrive faster than they are answered"
        if benefit.saturates
        else f", server busy {100 * benefit.busy:.0f} %"
    )


def _against(levels: Sequence[MeasuredLevel], alone: Sequence[MeasuredLevel]) -> str:
    throughput, mean, median = _figures(levels)
    gain = 100 * (throughput / _figures(alone)[0] - 1)
    return f"{gain:+.0f} %, {median:,.0f} ms, {mean:,.0f} ms"


def _figures(levels: Sequence[MeasuredLevel]) -> tuple[float, float, float]:
    found = np.mean(
        [(one.throughput_tok_s, one.ttft_ms_mean, one.ttft_ms_p50) for one in levels],
        axis=0,
    )
    return float(found[0]), float(found[1]), float(found[2])


def _ranged(interval: Interval, form: str) -> str:
    return f"{interval.value:{form}} ({interval.low:{form}} to {interval.high:{form}})"


def _runs_named(runs: Sequence[int]) -> str:
    """Return the numbers of runs in words: run 2; runs 1 and 3."""
    if len(runs) == 1:
        return f"run {runs[0]}"
    return f"runs {', '.join(map(str, runs[:-1]))} and {runs[-1]}"


def _grounds(basis: Basis, tier: Specification) -> Iterator[str]:
    speed, runs = basis.speed.best, basis.runs
    prompt = round(
        np.mean(
            [seen.prompt_tokens for levels in basis.levels.values() for seen in levels]
        )
    )
    prefill_tok_s = prompt / speed.prefill_s(0, prompt)
    yield (
        f"the server's speed in {basis.cell.path}, {_runs_named(runs)}: {prefill_tok_s:,.0f} tok/s for prompts of {prompt:,},"
        f" {1000 * (speed.batch_s + speed.answer_s):.1f} ms per token of a single answer,"
        f" {1000 * speed.request_s:.0f} ms a request before it is scheduled"
    )
    copies = basis.copies
    if copies.load_bytes_s:
        low, high = min(copies.load_bytes_s) / 1e9, max(copies.load_bytes_s) / 1e9
        yield f"copies to the device at {low:.1f} to {high:.1f} GB/s, as in {', '.join(copies.cells)}"
    else:
        yield "no time for copies, because no tier of this model was measured on this machine"
    if "lmcache" in tier.versions and copies.load_bytes_s:
        yield "the assumption that LMCache copies as fast as that tier"
