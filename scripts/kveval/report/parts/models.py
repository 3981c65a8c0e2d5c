"""The body of the report: the arms by model, arms against each other, guidance, and limitations."""

from __future__ import annotations

from collections.abc import Iterator

from kveval.analysis.cells import cell_of
from kveval.config.arm_kinds import kinds_of
from kveval.load.levels import in_words
from kveval.load.workload import WorkloadSpec, workload_of
from kveval.report.data.campaign import Measured, ReportPlan, cell_label, shortened
from kveval.report.data.run_facts import WEIGHTS, hardware, repeats
from kveval.report.parts.blocks import Pictures, of_models
from kveval.report.parts.value import value
from kveval.report.sections import Block, Bullets, Paragraph, Section
from kveval.report.tables.ceilings import PREFILL, ceilings_table
from kveval.report.tables.guidance import guidance_table
from kveval.report.tables.not_assessed import alike
from kveval.report.tables.pairs import pair_table
from kveval.report.tables.predicted import enough, predicted_table
from kveval.report.tables.results import arms_table, baselines_of, strategy_table
from kveval.report.tables.reuse import reuse_table
from kveval.report.tables.shape import fitted
from kveval.report.tables.tiers import tiers_table

READ = (
    "Throughput is output tokens delivered per second in the measurement window. Better, worse and parity are "
    "verdicts of tests at the campaign's error rate; the rest is [undecided, or not assessed](#not-assessed). The"
    " words are explained in [how to read this report](#how-to-read-this-report)."
)
# Figures of the answer's metrics other than throughput.
OVERVIEW = ("ttft_by_arm", "hit_rates_by_tier")
INDEX = (
    "An index of KV blocks helps to choose between replicas: with a single replica it can cost time, and cannot help."
)
TIERS = "What the tiers did there, by the server's counters over the level:"
CEILINGS = (
    "What limits loading, means over the runs: the rate of the tier's loads by the server's own counters, and the rate"
    " at which a probe copied large buffers on this machine."
)
LENGTHS = (
    " Prefill is the rate at which the baseline computes prompts; the other time is what a request with loads waits for"
    " beyond copying and computing. From these follows the length from which loading a prefix is faster than computing"
    " it again."
)
REUSE = (
    "Shares of the prompt tokens that came from caches: computed from the requests that were sent and the sizes of the"
    " caches, and found by the servers' own counters, both over the whole level, warm-up included. The interval is over"
    " runs, each of which has its own requests. A difference without a listed cause is a finding about the server."
)
BOUGHT = (
    "Predicted by simulating the server with the same requests: its speed is fitted to the runs without a tier, and the"
    " tiers copy at the rates measured here. The interval holds nine in ten simulations, each with a speed that agrees"
    " with those runs. A measured change outside it has reasons that the simulation does not model."
)
PAIRS = "Throughput at the level where the model's arms are compared. A pair that was not declared has no verdict."
GUIDANCE = (
    "A CPU tier belongs to the replica that filled it: where several serve a model, sticky or cache-aware routing"
    " brings a conversation back to its prefix.",
    (
        "The tier's host memory comes on top of the server's own; the limits on shared and on locked memory must "
        "allow both."
    ),
)


def body(plan: ReportPlan, measured: Measured, pictures: Pictures) -> Iterator[Section]:
    """Yield the sections between the first screen and the appendices."""
    shown = [block for name in OVERVIEW for block in pictures.take(name)]
    yield Section("By model", [*_overview(plan, measured), *shown, *_models(plan, measured, pictures)])
    yield from _reuse(plan, measured, pictures)
    yield from value(plan, measured, pictures)
    pairs = list(of_models(pair_table(plan, measured)))
    if pairs:
        yield Section("Arms against each other", [Paragraph(PAIRS), *pairs])
    answers = list(of_models(guidance_table(plan, measured)))
    if answers:
        yield Section("Deployment guidance", [*answers, Bullets(GUIDANCE)])
    lacking = missing(plan, measured)
    if lacking:
        yield Section("Missing", [Bullets(lacking)])
    again = [*_repeated(measured)]
    if again:
        yield Section("Measured again after a known defect", [Bullets(again)])
    yield Section("Limitations", [Bullets([*_limitations(plan, measured)])])


def _overview(plan: ReportPlan, measured: Measured) -> Iterator[Block]:
    yield Paragraph(READ)
    table = strategy_table(plan, measured)
    if len(table.rows) > 1 and any(any(row[1:4]) for row in table.rows):
        yield table
    if any(plan.scenarios[cell[1]].get("arm") in kinds_of("indexing") for cell in plan.cells):
        yield Paragraph(INDEX)


def _models(plan: ReportPlan, measured: Measured, pictures: Pictures) -> Iterator[Section]:
    for model in plan.models_by_size:
        level = measured.common_level(model)
        against = ", ".join(baselines_of(plan, measured, model))
        at = "" if level is None else f"At {measured.unit.said([level])}"
        blocks: list[Block] = [Paragraph(f"{at}{f', against {against}' if against else ''}:")] if at else []
        blocks += fitted(arms_table(plan, measured, model))
        work = tiers_table(plan, measured, model, level)
        if work.rows:
            blocks += [Paragraph(TIERS), *fitted(work)]
        ceilings = ceilings_table(plan, measured, model)
        if ceilings.rows:
            lengths = LENGTHS if PREFILL in ceilings.header else ""
            blocks += [Paragraph(f"{CEILINGS}{lengths}"), *fitted(ceilings)]
        yield Section(model, [*blocks, *pictures.of_section("model", model)])


def _reuse(plan: ReportPlan, measured: Measured, pictures: Pictures) -> Iterator[Section]:
    shares = list(of_models(reuse_table(plan, measured, compared=True)))
    if shares:
        yield Section("Reuse, computed and found", [Paragraph(REUSE), *pictures.of_section("reuse"), *shares])
    bought = list(of_models(predicted_table(plan, measured)))
    if bought:
        yield Section(
            "Gain from tiers, predicted and measured", [Paragraph(BOUGHT), *bought, Bullets([*enough(measured)])]
        )


def missing(plan: ReportPlan, measured: Measured) -> list[str]:
    """Return the cells and runs that the campaign asks for but that were not measured."""
    lines = []
    for cell in plan.cells:
        runs = len(measured.runs_of(cell))
        name = f"{cell[0]}, {cell_label(cell)}"
        if runs == 0:
            lines.append(f"{name}: {measured.failures.get(cell, 'not measured')}")
        elif runs < plan.runs_of(cell):
            reason = f"; {measured.failures[cell]}" if cell in measured.failures else ""
            lines.append(f"{name}: {runs} of {plan.runs_of(cell)} runs{reason}")
    return lines


def _repeated(measured: Measured) -> Iterator[str]:
    """Yield the known defects that ended runs, which runs were measured again, and how that affects comparisons."""
    for entry in repeats(measured.runs):
        arms = "; ".join(entry["arms"])
        yield f"[{entry['defect']}]({entry['link']}): {entry['title']}. Measured again: {arms}. {entry['effect']}"


def _limitations(plan: ReportPlan, measured: Measured) -> Iterator[str]:
    for words in dict.fromkeys(_made(workload_of(run.workload)) for run in measured.runs):
        yield f"The workload {words}."
    if measured.runs[0].weights == "random":
        yield f"{WEIGHTS['random'].capitalize()}: lengths of answers and what they say are not the model's."
    yield "One workload was measured, at the levels listed; nothing is known of other levels."
    edge = measured.peaks[~measured.peaks["bracketed"].astype(bool) & (measured.peaks["levels_measured"] > 1)]
    if len(edge):
        named = [f"{row['model']}, {cell_label(cell_of(row))}" for row in edge.to_dict("records")]
        yield f"The highest throughput lies on the first or last level measured: {shortened(named, separator='; ')}."
    if plan.runs < 5:
        yield ("With so few runs small differences stay undecided, and parity is seldom shown even where it holds.")
    for cells in alike(measured):
        yield f"{cells} ran the same configuration: a difference between them is noise."
    if len(hardware(measured.runs)) > 1:
        yield "The runs are from different machines."


def _made(workload: WorkloadSpec) -> str:
    """How the requests are made, as the end of a sentence."""
    kind = "is synthetic" if workload.trace is None else "replays a trace, whose words are made up"
    return f"{kind}: {in_words(workload)}"
