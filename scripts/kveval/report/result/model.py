"""The model of a campaign's result, and its way to report.json and back.

`python -m kveval.report --schema` prints its JSON schema, docs/report.schema.json. Programs that read a report.json
ignore keys that they do not know: such are added without a new number of the schema. Null stands for what is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kveval.campaign.cell import Cell, arm_label
from kveval.campaign.size import Size
from kveval.host.errors import Failure
from kveval.tables.cells import THROUGHPUT, parse_names


class ResultError(Failure):
    """A report.json cannot be read."""


def known_number(value: Any) -> float | None:
    """Return a number of a table, or of its text; None where it is missing or infinite."""
    number = math.nan if value is None or value == "" else float(value)
    return number if math.isfinite(number) else None


def _whole(value: Any) -> int | None:
    number = known_number(value)
    return None if number is None else round(number)


def or_nan(value: float | None) -> float:
    """Return a number as tables have it: NaN where it is not known."""
    return math.nan if value is None else value


def known_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a finding; None in place of a number that is missing or infinite."""
    return {name: _known_fact(value) for name, value in facts.items()}


def _known_fact(value: Any) -> Any:
    if isinstance(value, list):
        return [_known_fact(part) for part in value]
    return known_number(value) if isinstance(value, float) else value


def known_text(value: Any) -> str | None:
    """Return a text of a table; None where it is missing or empty."""
    return value if isinstance(value, str) and value else None


def _parts(value: Any) -> Any:
    """Return the parts of a text that `;` joins, none of a missing one."""
    if isinstance(value, list | tuple):
        return list(value)
    return parse_names(value)


Number = Annotated[float | None, BeforeValidator(known_number)]
Whole = Annotated[int | None, BeforeValidator(_whole)]
Text = Annotated[str | None, BeforeValidator(known_text)]
Names = Annotated[list[str], BeforeValidator(_parts)]
Numbers = Annotated[list[int], BeforeValidator(_parts)]
Blocks = Annotated[int, Field(ge=0)]


class ResultPart(BaseModel):
    """Base of all parts of a result: frozen. The text below a key describes it in the schema."""

    # Built when a result is made or read: `kveval show` imports one part of it.
    model_config = ConfigDict(
        frozen=True, use_attribute_docstrings=True, defer_build=True
    )


class ReportedInterval(ResultPart):
    """A value with its 95 % interval over runs; no interval with a single run."""

    value: Number
    low: Number
    high: Number

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Value, low and high; NaN for what is not known."""
        return or_nan(self.value), or_nan(self.low), or_nan(self.high)


class Remedy(ResultPart):
    """A change that would give a verdict; its sentence is in templates/remedies.md.j2."""

    code: str
    """such as more_runs"""
    facts: dict[str, Any] = {}
    """the values in its sentence, such as how many runs, and the command that measures them"""


class ReportedCampaign(ResultPart):
    """The campaign as it was asked for."""

    name: str
    title: str
    description: str
    """what its author says of it"""
    runs: int
    margin: float
    alpha: float
    primary: str
    """the metric whose verdicts share that error rate"""
    goodput: dict[str, Any]
    """the latency limits that goodput is within; empty without any"""
    prices: dict[str, float]
    """USD for an hour of a GPU, of a server's host, of a GiB of host memory; empty without any"""


class ReportedBuild(ResultPart):
    """The build of the server that an arm names in place of what is installed."""

    scenario: str
    title: str
    key: str
    """what tells it apart from others of this title; empty for a release"""


class ReportedOrigin(ResultPart):
    """The facts that are needed to find or repeat the campaign."""

    measured_on: list[str]
    """the first and the last day of measuring, UTC"""
    command: str
    """measures what is missing and writes the report; empty if it is not known"""
    workflow_commit: str
    """of the workflow that wrote the report, ending in -dirty with changes that are not committed; empty if not known"""
    versions: dict[str, str]
    """program -> its version as measured; of several, joined by a slash"""
    server_commits: list[str]
    """of servers that were built from a checkout"""
    images: list[str]
    """of the servers' containers"""
    builds: list[ReportedBuild]
    """of the arms that name one"""
    reduced_environments: list[dict[str, Any]]
    """what was left out of the servers' environments, and the host's packages in them; none of complete ones"""
    machines: list[str]
    measurements: list[str]
    """ids in the store"""


class ReportedCellName(ResultPart):
    """A cell; `cpu_blocks` are 16-token blocks of its CPU tier, 0 without one."""

    model: str
    scenario: str
    cpu_blocks: Blocks

    @property
    def cell(self) -> Cell:
        """The cell."""
        return Cell(self.model, self.scenario, self.cpu_blocks)

    @property
    def label(self) -> str:
        """The arm with its size, as tables and figures name it: `native-offload 10K`."""
        return self.cell.label


def named_cells(cells: Iterable[Cell]) -> list[ReportedCellName]:
    """Return cells by their names, in their order."""
    return [ReportedCellName(**cell.row) for cell in cells]


class ReportedStep(ResultPart):
    """A step that would make the answer more certain; its sentence is in the answer."""

    code: str
    """the warning that it answers, such as few_runs"""
    cells: list[ReportedCellName]
    """the cells that need it, all of them; none where it is about the campaign as a whole"""
    command: str
    """what takes it; empty if nothing to paste does"""
    facts: dict[str, Any]
    """the numbers behind it, such as how many runs are missing"""
    remedies: list[Remedy] = []
    """what would give the cells a verdict; none where the code says it"""


class Latency(ResultPart):
    """A latency in ms: means over runs of the mean and the quantiles over requests."""

    mean: Number
    p50: Number
    p90: Number
    p99: Number


class Peak(ResultPart):
    """The level with the highest mean throughput of a cell, and what was measured there."""

    level: Annotated[int, Field(gt=0)]
    """counted in the report's `level_unit`"""
    bracketed: bool
    """whether it lies inside the levels measured"""
    plateau: Numbers
    """levels as good as it within the spread of the runs"""
    runs: Annotated[int, Field(gt=0)]
    active: bool | None
    """whether the arm was active in all runs; null where it is not known"""
    throughput_tok_s: ReportedInterval
    """output tokens delivered per second"""
    throughput_crossfit_tok_s: Number
    """without the bias of choosing the highest level"""
    latency_ms: dict[Literal["ttft", "tpot", "itl", "e2e"], Latency]
    requests: dict[Literal["completed", "incomplete", "errored"], int]
    """over all runs"""
    system: dict[str, Number]
    """columns of config/metrics.yaml, units in their names"""
    system_by_run: dict[str, list[float]]
    """a column of `metrics` that was recorded -> the value of each run"""
    gpus: dict[str, dict[str, list[float]]]
    """of servers with several GPUs: the GPU -> a column that is recorded for each -> the values of the runs"""
    samples: Number
    """the least samples of the recording in the window of a run; null without a recording"""
    checks_failed: Names


class LevelResult(ResultPart):
    """A cell at one level: means over the runs that have a value, counts over all runs."""

    level: int
    streams: Number
    """how many requests were asked to be in progress"""
    rate_req_s: Number
    """the rate at which requests were sent, where the load gives one"""
    runs: int
    """runs with a throughput"""
    throughput_by_run_tok_s: dict[str, Number]
    by_run: dict[str, dict[str, Number]]
    """another column of levels.csv -> the value of each run, null for none; without columns that no run has"""
    throughput_tok_s: Number
    ttft_ms_p50: Number
    ttft_ms_p90: Number
    itl_ms_p50: Number
    prefix_hit_ratio: Number
    """prompt tokens found in the device's cache, of those that it was asked for"""
    external_hit_ratio: Number
    """prompt tokens found behind it, of those asked for there"""
    requests_completed: int
    requests_errored: int
    activity: list[str]
    """whether the arm was active, by the server's counters: "shown", "none" or "not shown", each once over the runs"""
    failed_runs: list[int]
    """runs that failed a check at this level"""

    def values(self, metric: str, runs: Collection[int] | None = None) -> list[float]:
        """Return the known values of a quantity, a run each; of these runs alone if given."""
        return [
            value
            for run, value in self.by_run_of(metric).items()
            if runs is None or run in runs
        ]

    def by_run_of(self, metric: str) -> dict[int, float]:
        """Return run -> its value of a quantity, of the runs that have one."""
        by_run = self.by_run | {THROUGHPUT: self.throughput_by_run_tok_s}
        return {
            int(run): value
            for run, value in by_run.get(metric, {}).items()
            if value is not None
        }


class ReportedMean(ResultPart):
    """A geometric mean over runs, and which these are; none of both where there was no comparison."""

    runs: list[int] = []
    mean: Number = None


class ReportedCell(ReportedCellName):
    """A cell that was asked for: its runs and its peak, or why there is none."""

    runs: list[str]
    """MEASUREMENT/run-N in the store"""
    runs_requested: int
    """how many the campaign asks for"""
    peak: Peak | None
    missing: str | None
    """why it has no peak"""
    kept_means: dict[str, ReportedMean]
    """metric -> the mean in its comparison with its baseline, of a baseline in most with it; without metrics that have
    none"""
    kept_peak_means: dict[str, ReportedMean]
    """the same in `peak_comparisons`, at the level of its own best"""
    device_cache_tokens: Number
    cpu_tier_tokens: Number
    cpu_tier_bytes: Whole
    """of its tier in host memory, over all ranks; null without one, and where it is not known"""
    cpu_tier_pinned_bytes: Whole
    """the host memory that this tier takes where that is more, as pinned tensors are rounded up; null where it is not"""
    working_set_tokens: dict[str, int]
    """level -> tokens of the distinct prefixes"""
    tier_activity: dict[str, dict[str, Number]]
    """level -> the work of its caches by the servers' counters, means over runs"""
    goodput_per_s: Number
    """the largest mean goodput of all levels; null where it is not known"""
    goodput_level: Whole
    """the level that has it; null where nothing met the limits at any level"""
    arm_kind: str
    """the kind of its arm, such as native"""
    is_baseline: bool
    """whether arms are compared with it, and it with none"""
    resident_gib: Number
    """the most that was resident in its servers' processes at any level of any run, GiB, shared memory counted once in
    each process; null where it was not recorded"""
    levels: list[LevelResult]
    command_lines: list[str]
    """as they ran: the server's, with its environment, those of the programs beside it, and the last one of the load"""

    @property
    def tier_size(self) -> Size | None:
        """The size of its tier in host memory; None without one, or where its bytes are not known."""
        if self.cpu_tier_bytes is None:
            return None
        return Size(self.cpu_blocks, self.cpu_tier_bytes)

    def values(
        self, level: int | None, metric: str, runs: Collection[int] | None = None
    ) -> list[float]:
        """Return the known values of a quantity at a level, a run each; of these runs alone if given."""
        at = self.at(level)
        return at.values(metric, runs) if at else []

    def at(self, level: int | None) -> LevelResult | None:
        """Return what was measured at a level; None if nothing was."""
        return next((each for each in self.levels if each.level == level), None)


class ReportedRun(ReportedCellName):
    """A run of a cell: which it is in the store, when and where it was measured, and the time of its phases."""

    run: int
    measurement: str
    started: str
    """UTC, in ISO 8601"""
    hardware: Text
    """the fingerprint of its machines; null where they were not probed"""
    nodes: list[str]
    """of a cluster, those that its servers ran on"""
    gpus_of_server: Whole
    """null where the device is the CPU, and where it is not known"""
    phases: dict[str, float]
    """phase of the measurement -> its seconds"""
    disturbed: bool
    """whether other programs took more than 10 % of the processors' time at a level"""


class ReportedExclusion(ResultPart):
    """A run that a comparison leaves out; `code`: the reason, see docs/verdicts.md."""

    code: str
    run: int
    side: Literal["arm", "reference"]
    facts: dict[str, Any]


class ReportedFinding(ResultPart):
    """A finding on an input of a verdict."""

    input: str
    code: str
    """of docs/verdicts.md"""
    severity: Literal["sound", "unknown", "qualifies", "indicates", "refuses"]
    """from least to most severe; see docs/verdicts.md"""
    facts: dict[str, Any]


class ReportedComparison(ReportedCellName):
    """A cell against another one of its model, in one quantity, at one level."""

    metric: str
    family: Literal[
        "primary",
        "exploratory",
        "primary, idle",
        "exploratory, idle",
        "primary, neighbouring sizes",
        "exploratory, neighbouring sizes",
        "primary, neighbouring sizes, idle",
        "exploratory, neighbouring sizes, idle",
        "undeclared",
    ]
    """primary: p_holm is over all of the metric; idle arms, and neighbouring sizes of an arm that were not declared,
    apart; exploratory: each alone; undeclared: a pair of `pairs` that is described only"""
    verdict: str
    """a word of docs/verdicts.md; of an indicative verdict with what makes it so, in brackets"""
    against: ReportedCellName | None
    with_baseline: bool
    """whether it is that of an arm with its baseline, also where there is none, or a declared pair"""
    effect_percent: ReportedInterval
    """per cent of the cell it is compared with"""
    cost_percent: Number
    """the most that an idle arm costs, per cent of the cell it is compared with (one-sided, 95 % for all idle arms)"""
    shown_verdict: str
    """the one of the report's six verdicts that this is shown as, see docs/verdicts.md; of peaks, that it is not judged"""
    reason: str
    remedies: list[Remedy]
    """what would give a verdict where there is none, and of an idle arm, then of its cost; none elsewhere"""
    grounds: list[str]
    """why the verdict is what it is, or why there is none: codes of docs/verdicts.md, in the order of reason"""
    exclusions: list[ReportedExclusion]
    """the runs of either cell that are left out"""
    basis: dict[str, str]
    """input of the verdict -> what is known of it, as in its column basis_... of comparison.csv; of those in `comparisons`
    on throughput alone"""
    findings: list[ReportedFinding]
    """on the inputs in `basis`: those that are not sound, and grounds of the verdict"""
    bound: Literal["at least", "at most"] | None
    """the effect is at least, or at most, this large: one side had too few requests in flight"""
    qualifier: str | None
    """what is stated beside the verdict, such as another build of the server"""
    indication: str | None
    """the verdict that an indicative comparison points to"""
    interval_percent: Number
    """confidence of the interval, by which its family's tests decide: 95 for one comparison alone, 90 for parity and a
    bounded cost; more where several are adjusted for each other"""
    p_holm: Number
    parity_power_percent: Number
    """the chance that parity would be shown if no arm differed; null where it is not known"""
    mean: Number
    """geometric mean over the runs kept of the cell; over baseline_mean it is 1 + effect / 100"""
    baseline_mean: Number
    runs_kept: list[int]
    """the runs of the cell that the comparison rests on"""
    baseline_runs_kept: list[int]
    """the runs that they are paired with, of the cell it is compared with"""
    level: Whole
    runs: Whole
    runs_to_decide: Whole
    """the runs that would decide it at the measured effect and spread; null where it is decided, or above 1,000"""
    runs_to_resolve: Whole

    @property
    def against_label(self) -> str:
        """The name of the cell that it is compared with, "" if there is none."""
        return self.against.label if self.against else ""

    @property
    def means(self) -> tuple[ReportedMean, ReportedMean]:
        """The means behind the effect: of the cell, and of the one that it is compared with."""
        return (
            ReportedMean(runs=self.runs_kept, mean=self.mean),
            ReportedMean(runs=self.baseline_runs_kept, mean=self.baseline_mean),
        )

    @property
    def row(self) -> dict[str, Any]:
        """The columns of comparison.csv from which it is put into words; NaN for what is not known."""
        value, low, high = self.effect_percent.numbers
        return {
            **self.cell.row,
            "baseline": self.against.cell.path if self.against else "",
            "metric": self.metric,
            "family": self.family,
            "verdict": self.verdict,
            "indication": self.indication,
            "qualifier": self.qualifier,
            "reason": self.reason,
            "grounds": ";".join(self.grounds),
            "bound": self.bound,
            "effect_percent": value,
            "low_percent": low,
            "high_percent": high,
            "interval_percent": or_nan(self.interval_percent),
            "cost_percent": or_nan(self.cost_percent),
        }


class ReportedTimes(ReportedCellName):
    """Times to the first token of one request in a cell, its prompt computed or from a cache."""

    source: Literal["cold", "device", "tier"]
    runs: int
    requests: int
    """requests that came from this source, over all runs"""
    ttft_ms: dict[Literal["median", "least", "most"], Number]
    prompt_tokens: Whole
    """of a request, median"""
    served_tokens: Whole
    """of these, from a cache by the server's counters"""
    through: Text
    """what the requests went through, whose time is in theirs"""
    reason: Text
    """why there is no time"""


class Average(ResultPart):
    """An arm's effect averaged over the models that have all arms: the geometric mean of ratios."""

    scenario: str
    cpu_blocks: Blocks
    metric: str
    effect_percent: ReportedInterval
    """per cent of the baseline; the interval is over models"""
    models: Names
    missing: Names
    """MODEL/SCENARIO/CPU_BLOCKS"""

    @property
    def label(self) -> str:
        """The arm with its size, as tables and figures name it."""
        return arm_label(self.scenario, self.cpu_blocks)


class ComparedCells(ResultPart):
    """A cell, and the one that it is compared with."""

    cell: ReportedCellName
    against: ReportedCellName | None


class Gap(ResultPart):
    """Something that was not assessed."""

    code: str
    """no_run, no_verdict, not_declared, figure, or what the campaign as a whole lacks, such as tiers"""
    cells: list[ComparedCells] = []
    """the cells of one model that it is about"""
    metrics: list[str] = []
    """in which they were compared"""
    reason: str = ""
    """why a cell was not measured, a comparison has no verdict or a figure is empty"""
    remedies: list[Remedy] = []
    """what would give the comparisons a verdict"""
    facts: dict[str, Any] = {}
    """what else is in its sentence, such as the name of a figure"""


class ReportedFigure(ResultPart):
    """A figure, and why it is empty if it is."""

    name: str
    path: str
    empty: str | None


class CheckFinding(ResultPart):
    """The finding of one check on a cell's levels, or on the campaign's tables; checks that pass have none."""

    check: str
    severity: Literal["fail", "warn", "note"]
    """fail: enters no verdict; warn: needs a look; note: a limit of what it can show"""
    cell: ReportedCellName | None
    """null for the campaign as a whole"""
    runs: list[int]
    levels: list[int]
    """none for the campaign's tables"""
    count: int
    """how often it was found"""
    message: str
    """the first of its messages"""
    facts: dict[str, Any]
    """the values in that message, with units in their names"""
    messages: int
    """how many of them differ"""


class ReportedCeiling(ReportedCellName):
    """The limits of the loads of a cell's tier: at the longest prefix if the load varies it, else at the lowest level."""

    level: int
    load_gb_s: Number
    """the rate of the tier's loads by the server's own counters, GB/s"""
    copy_gb_s: Number
    """the rate at which a probe copied large buffers on this machine, GB/s; null where it did not"""
    load_tok_s: Number
    """tokens whose KV cache the tier loads per second"""
    prefill_tok_s: Number
    """prompt tokens that the baseline computes per second; null where requests were not sent one at a time"""
    overhead_ms: Number
    """what a request with loads waits for beyond copying and computing; null as prefill_tok_s is"""
    break_even_tokens: Number
    """the length from which loading a prefix is faster than computing it; null where it is not known, or never is"""
    never_faster: bool
    """whether computing is faster for every length"""
    faster_levels: list[int]
    """the lengths at which the TTFT was measured to be shorter than the baseline's; none if the load does not vary it"""


class ReportedKvBytes(ResultPart):
    """The bytes of a token in the KV cache of a model: keys and values of all layers."""

    named: Whole
    """of the model that the campaign names; null where it is not known"""
    served: Whole
    """of the one that was served, such as a miniature; null where it is not known"""


class ReportedCounter(ReportedCellName):
    """A counter of the server that has to rise for an arm to count as active, over all levels and runs."""

    counter: str
    unit: str
    """empty for a number"""
    needed_least: Number
    """by how much it had to rise, at the level that needed the least"""
    needed_most: Number
    rise_least: Number
    """null where it was never read, as in rise_most"""
    rise_most: Number
    enough_levels: list[int]
    """the levels at which it rose enough in a run"""
    too_little_levels: list[int]
    """the levels at which it did not in a run"""


class ReportedReuse(ReportedCellName):
    """Shares of the prompt tokens that came from caches at a level, per cent: computed and found, means over runs.

    Computed from the requests that were sent and the sizes of the caches, found by the servers' counters, both over the
    whole level, warm-up included.
    """

    level: int
    runs: int
    has_tier: bool
    device_computed_percent: float
    device_found_percent: float
    computed_percent_low: float
    """the least that device and tier together can serve; that of the device without a tier"""
    computed_percent_high: float
    """the most that they can serve"""
    found_percent: float
    difference_points: ReportedInterval
    """found minus the nearest end of what was computed, percentage points"""
    is_finding: bool
    """whether they differ beyond the tolerance"""
    clues: dict[str, float]
    """what the servers counted that may explain a difference; empty where nothing does"""


class TierNeeded(ResultPart):
    """The tier in host memory that adds 90 % of the hits that one without a limit adds, as computed for a level."""

    level: int
    cpu_blocks: Blocks
    size_bytes: int

    @property
    def size(self) -> Size:
        """The size of that tier."""
        return Size(self.cpu_blocks, self.size_bytes)


class ReportedStage(ResultPart):
    """A stage on the way of a cell's prompt tokens from the requests to the caches, means over runs."""

    percent_of_prompts: Number
    """null where it is not known"""
    excess_points: Number
    """percentage points that it has more than the stage before, beyond the tolerance; null where it has no more"""


class ReportedLeak(ReportedCellName):
    """Where a cell loses most of its hits, at the common level; see waterfall.csv."""

    code: str
    """such as tier_idle; see docs/results.md"""
    stage: str
    """the stage that lacks the tokens which the one before it has"""
    facts: dict[str, Any]
    """the numbers behind it, such as sizes in tokens and failed transfers"""
    stages: dict[str, ReportedStage]
    """in their order, the seconds saved left out"""
    saved_s: Number
    """seconds of computing prompts that hits saved in a run; null where it is not known"""
    clues: dict[str, float] | None
    """what the servers counted that may explain why other tokens were found than computed; empty where nothing does, null
    where nothing was computed"""


class MissingRuns(ReportedCellName):
    """A cell with fewer runs than the campaign asks for."""

    runs: int
    runs_requested: int
    reason: Text
    """why there are no more; null where it is not known"""


class RepeatedRuns(ResultPart):
    """The runs of a scenario, over all models and sizes, that were measured again because a known defect ended them."""

    scenario: str
    repeated: int
    """how many of its runs were measured again"""
    runs: int
    """how many it has"""
    attempts: int
    """how many attempts the defect ended"""


class ReportedDefect(ResultPart):
    """A known defect of released software that ended runs, so that they were measured again."""

    defect: str
    title: str
    link: str
    effect: str
    """how this may affect comparisons"""
    scenarios: list[RepeatedRuns]


class ReportedMetric(ResultPart):
    """A column of config/metrics.yaml that is in a table of the report."""

    title: str
    unit: str
    table: str
    recorded: bool
    """whether a peak has it"""
    by_gpu: bool
    """whether it was recorded for each GPU"""


class ReportedLookups(ReportedCellName):
    """The lookups in a tier at a level, by the server's counters, of all runs together."""

    level: int
    tier: str
    """empty where they are of all tiers, for whole prompts"""
    chunks: Number
    """looked up; null where they are not counted"""
    hits: Number
    blocked_ms: list[float | Literal["longer"] | None]
    """how long half, and nine in ten, of the lookups held up the scheduler at most: ends of the server's buckets, longer
    beyond the last one; null where it is not known"""
    deferred_ms: list[float | Literal["longer"] | None]
    """the same of the wait for an answer, where the lookup was put off"""


class ReportedFailedTransfers(ReportedCellName):
    """Transfers of a kind that failed or were left out at a level, of all runs together."""

    level: int
    kind: str
    count: float


class TriedLevel(ResultPart):
    """A level that a pilot tried when it searched the levels of a campaign."""

    cell: str
    """MODEL/SCENARIO/CPU_BLOCKS of the pilot"""
    order: int
    level: int
    throughput_tok_s: float
    place: Literal["peak", "highest", "below", "above"] | None
    """highest: the peak of a search that did not bracket it"""
    measured: bool
    """whether all arms were measured at it"""
    ending: str | None
    """of the last level: why the search ended"""


class CampaignResult(ResultPart):
    """The result of a campaign: the content of report.json."""

    report_schema: Literal[1] = 1
    """raised when a key changes its meaning or goes"""
    steps: list[ReportedStep]
    """what would make the answer more certain, in order: the first one with a command if any has one"""
    campaign: ReportedCampaign
    origin: ReportedOrigin
    engine: str
    weights: str
    hardware: list[dict[str, Any]]
    software: dict[str, list[str]]
    workloads: list[dict[str, Any]]
    level_unit: str
    """what levels count, such as concurrent requests"""
    method_hash: str | None
    """changes with whatever may change a verdict on the same data"""
    common_levels: dict[str, int | None]
    """model -> level at which its cells are compared"""
    cells: list[ReportedCell]
    runs: list[ReportedRun]
    """of all cells"""
    comparisons: list[ReportedComparison]
    """arms with their baselines, then declared pairs"""
    peak_comparisons: list[ReportedComparison]
    """arms with their baselines, each at the level of its own best"""
    pairs: list[ReportedComparison]
    """arms against each other in throughput: those that differ in one thing, then declared ones"""
    one_request: list[ReportedTimes]
    """what one request took before the levels"""
    averages: list[Average]
    not_assessed: list[Gap]
    figures: list[ReportedFigure]
    checks: list[CheckFinding]
    """what checks found, in the order of the tables"""
    checks_made: int
    """how many checks apply to what was measured, passed or not"""
    goodput_levels: dict[str, int | None]
    """model -> level at which its cells are compared by goodput; empty without limits"""
    ceilings: list[ReportedCeiling]
    """of each arm whose tier's loads were counted"""
    kv_bytes_per_token: dict[str, ReportedKvBytes]
    """model -> bytes of a token in its KV cache"""
    required_counters: list[ReportedCounter]
    """of each arm that was measured"""
    reuse: list[ReportedReuse]
    """of each cell and level whose requests and caches are known"""
    tiers_needed: dict[str, TierNeeded]
    """model -> the size that was computed for its load; without models of which it is not known"""
    leaks: list[ReportedLeak]
    """of each cell whose prompt tokens are known by stage"""
    missing_runs: list[MissingRuns]
    """in the order in which the campaign has its cells"""
    peaks_at_edge: list[ReportedCellName]
    """cells with their peak at the first or last of several levels, in the order of peak_throughput_all.csv"""
    known_defects: list[ReportedDefect]
    """those that ended runs"""
    same_configurations: list[list[ReportedCellName]]
    """cells of a model that ran the same configuration under different names"""
    metrics: dict[str, ReportedMetric]
    """column of config/metrics.yaml -> what it is; of those that a table of the report has"""
    lookups: list[ReportedLookups]
    failed_transfers: list[ReportedFailedTransfers]
    searches: list[TriedLevel]
    """in the order of the searches; none where levels were given"""

    @cached_property
    def by_cell(self) -> dict[Cell, ReportedCell]:
        """The cells that were asked for, in the order of every table and figure."""
        return {cell.cell: cell for cell in self.cells}

    @cached_property
    def runs_by_cell(self) -> dict[Cell, list[ReportedRun]]:
        """The runs of each cell that has some, by their numbers."""
        runs: dict[Cell, list[ReportedRun]] = {}
        for run in sorted(self.runs, key=lambda run: run.run):
            runs.setdefault(run.cell, []).append(run)
        return runs

    def cells_of(self, model: str) -> list[ReportedCell]:
        """Return the cells of a model, in the order of every table and figure."""
        return [cell for cell in self.cells if cell.model == model]

    @property
    def levels_of_runs(self) -> int:
        """The number of levels that were measured, each counted in every run that has it."""
        levels = (level for cell in self.cells for level in cell.levels)
        return sum(len(level.throughput_by_run_tok_s) for level in levels)

    def with_baselines(self, metric: str) -> dict[Cell, ReportedComparison]:
        """Return the comparison of each arm with its baseline in a metric, in the order of every table and figure."""
        return self._of_arms(self.comparisons, metric)

    def peaks_with_baselines(self, metric: str) -> dict[Cell, ReportedComparison]:
        """Return the same of each arm's best level with that of its baseline."""
        return self._of_arms(self.peak_comparisons, metric)

    def _of_arms(
        self, comparisons: Iterable[ReportedComparison], metric: str
    ) -> dict[Cell, ReportedComparison]:
        of_arms: dict[Cell, ReportedComparison] = {}
        for each in comparisons:
            if each.with_baseline and each.metric == metric:
                of_arms.setdefault(each.cell, each)
        return {cell: of_arms[cell] for cell in self.by_cell if cell in of_arms}

    def tier_sizes(self, model: str | None = None) -> dict[Cell, Size]:
        """Return the sizes of the tiers in host memory, of the cells that have one; of one model if asked."""
        cells = (each for each in self.cells if model in (None, each.model))
        sizes = {each.cell: each.tier_size for each in cells}
        return {cell: size for cell, size in sizes.items() if size is not None}

    def to_json(self) -> str:
        """Return the text of report.json."""
        return f"{self.model_dump_json(indent=1)}\n"


def read_result(path: Path) -> CampaignResult:
    """Return the result in a report.json. Raises ResultError, OSError."""
    try:
        return CampaignResult.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ResultError(
            f"{path}: this version of kveval cannot read it: {place}: {first['msg']}",
            code="not_a_result",
        ) from error


def schema_text() -> str:
    """Return the JSON schema of report.json, the text of docs/report.schema.json."""
    return json.dumps(CampaignResult.model_json_schema(), indent=1) + "\n"
