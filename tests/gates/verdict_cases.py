"""Made-up comparisons for the gate of verdicts: every reason to leave a run out, to refuse, to qualify and to doubt.

`CASES`: name -> a function that makes the case.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from tests.support.synthetic import WORKLOAD, levels_table
from tests.support.synthetic_value import with_goodput
from tests.unit.verdict import test_attacks as attacks
from tests.unit.verdict import test_attacks_runs as runs
from tests.unit.verdict import test_comparison as comparisons
from tests.unit.verdict import test_idle_arms as idle

from kveval.campaign.cell import Cell
from kveval.store.run_file import IMPORTED
from kveval.tables.levels.outcomes import Outcome, outcome_columns

THROUGHPUT = "throughput_tok_s"
ARM, BASELINE = runs.ARM, runs.BASELINE
TTFT, P90 = "ttft_ms_p50", "e2e_ms_p90"
EVERY_RUN = [1, 2, 3, 4, 5]
"""The numbers of the runs of a cell, unless a case has others."""
HIGHEST_LEVEL = 32
RANDOM_CAMPAIGNS = 20


@dataclass(frozen=True)
class Case:
    """A campaign's levels with the settings that it is compared with.

    `tables_only`: of the report, only the table of what is not assessed is held.
    """

    levels: pd.DataFrame
    settings: Mapping[str, Any]
    requested_runs: Mapping[Cell, int] | None = None
    tables_only: bool = False


def of(levels: pd.DataFrame, **settings: Any) -> Case:
    """A case without requested runs."""
    return Case(levels, settings)


def _checked(severity: str, name: str, message: str) -> dict[str, str]:
    return outcome_columns([Outcome(name, severity, {"message": message}, "{message}")])


def _changed(scenario: str, numbers: list[int], **values: Any) -> Case:
    """The campaign with these values in some runs of a scenario."""
    levels = _with_columns(values)
    return of(runs.with_values(levels, scenario, numbers, **values))


def _silent(scenario: str, numbers: list[int]) -> Case:
    """The campaign with some runs of a scenario in which nothing was delivered."""
    return _changed(scenario, numbers, throughput_tok_s=0.0)


def _untimed(numbers: list[int]) -> Case:
    """The campaign with some runs of the arm whose times to the first token are no times."""
    reason = "ttft=0 ms or less in 2 of 3 requests"
    return _changed(ARM, numbers, ttft_ms_p50=np.nan, latencies_unknown=reason)


def _with_columns(values: Mapping[str, Any]) -> pd.DataFrame:
    """The campaign, with the columns that `values` names."""
    levels = runs.campaign()
    for column, value in values.items():
        if column not in levels:
            levels[column] = np.nan if isinstance(value, int | float) else ""
        elif isinstance(value, str):
            levels[column] = levels[column].astype(object)
    return levels


def _without_levels(scenario: str, numbers: list[int], *levels: int) -> Case:
    """The campaign without these levels of some runs, compared at its highest level."""
    table = runs.campaign()
    absent = runs.of(table, scenario, numbers) & table["level"].isin(levels)
    return of(table[~absent], level=HIGHEST_LEVEL)


def _twin() -> Case:
    """An arm that repeats its baseline to the digit."""
    levels = runs.campaign(0.0)
    names = [name for name in levels if "_ms_" in name or name.startswith("requests_")]
    of_arm = levels["scenario"] == ARM
    baseline = levels[levels["scenario"] == BASELINE]
    for name in (THROUGHPUT, *names):
        levels.loc[of_arm, name] = baseline[name].to_numpy()
    return of(levels)


def _bridge() -> Case:
    """A campaign with a bridge of which one run is on another machine, and one failed a check."""
    levels = runs.bridged(1000.0, [2])
    levels = runs.with_values(levels, BASELINE, [9], hardware="beef")
    levels = runs.with_values(levels, BASELINE, [7], checks_failed="turns")
    requested = dict.fromkeys(runs._cells(levels), 5)
    for cell in requested:
        if cell.scenario == BASELINE:
            requested[cell] = 10
    return Case(levels, {}, requested)


def _all_copied() -> Case:
    """So many copied runs that too few are left."""
    levels = runs.copied(runs.campaign(), ARM, [2, 3, 4, 5])
    return of(runs.copied(levels, BASELINE, [2]))


def _requested() -> Case:
    """Four runs of each cell, where five were requested."""
    requested = dict.fromkeys(runs._cells(runs.campaign()), 5)
    return Case(runs.campaign(runs=4), {}, requested)


RUNS: dict[str, Callable[[], Case]] = {
    "sound": lambda: of(levels_table()),
    "nothing delivered in one": lambda: _silent(ARM, [2]),
    "nothing delivered in two": lambda: _silent(ARM, [4, 5]),
    "nothing delivered in three": lambda: _silent(ARM, [1, 2, 4]),
    "nothing delivered at all": lambda: _silent(ARM, EVERY_RUN),
    "baseline delivered nothing": lambda: _silent(BASELINE, [2, 3]),
    "no value": lambda: _changed(ARM, [3], throughput_tok_s=np.nan),
    "infinite": lambda: _changed(ARM, [3], throughput_tok_s=np.inf),
    "negative": lambda: _changed(BASELINE, [3], throughput_tok_s=-4.0),
    "no latency": lambda: _changed(ARM, [3], ttft_ms_p50=np.nan),
    "latency of 0": lambda: _changed(ARM, [3], ttft_ms_p50=0.0),
    "latency unknown": lambda: _untimed([3]),
    "latencies unknown": lambda: _untimed([1, 2, 3]),
    "not reached": lambda: _changed(ARM, [4, 5], e2e_ms_p90=np.nan, not_reached=P90),
    "level failed": lambda: _changed(
        ARM, [4], **_checked("fail", "level_failed", f"GuideLLM failed {'x' * 150}")
    ),
    "check failed": lambda: _changed(BASELINE, [4], checks_failed="totals;turns"),
    "errors failed": lambda: _changed(ARM, [4, 5], checks_failed="errors"),
    "all failed": lambda: _changed(ARM, EVERY_RUN, checks_failed="no_reuse"),
    "few latencies": lambda: _changed(ARM, [1, 2, 3], ttft_count=3),
    "not measured": lambda: of(runs.without(runs.campaign(), ARM, [4, 5])),
    "imported, not measured": lambda: of(
        runs.without(runs.campaign(), ARM, [4, 5]).assign(engine=IMPORTED)
    ),
    "no row": lambda: _without_levels(ARM, [4, 5], HIGHEST_LEVEL),
    "no level": lambda: _without_levels(BASELINE, EVERY_RUN, 1, 8, 32),
    "another machine": lambda: of(runs.on(runs.campaign(), ARM, [1])),
    "other machines": lambda: of(runs.on(runs.campaign(), ARM, [1, 2, 3, 4])),
    "copied": lambda: of(runs.copied(runs.campaign(), ARM, [4])),
    "all copied": _all_copied,
    "twin": _twin,
    "active in four": lambda: of(attacks.active_in(runs.campaign(), 1, 2, 3, 4)),
    "active in one": lambda: of(attacks.active_in(runs.campaign(), 3)),
    "one run": lambda: of(runs.campaign(runs=1)),
    "two runs": lambda: of(runs.campaign(runs=2)),
    "bridge": _bridge,
    "repeated late": lambda: of(
        runs.repeated_late(_in_one_order(runs.campaign(runs=3)), [2])
    ),
    "one of five late": lambda: of(runs.repeated_late(runs.campaign(), [2])),
    "another time": lambda: of(
        comparisons.later(runs.campaign(), "native-offload", 1000)
    ),
    "no baseline": lambda: of(runs.campaign()[lambda table: table["scenario"] == ARM]),
    "hung": lambda: _changed(ARM, [4, 5], throughput_tok_s=0.0, exercised=False),
    "requested": _requested,
}


def _of_arm(**changes: Any) -> Callable[[], Case]:
    """Make the campaign with these values in every run of the arm."""
    return lambda: of(attacks.of_arm(runs.campaign(), **changes))


def _on_gpus(**conditions: Any) -> Callable[[], Case]:
    """Make the campaign on GPUs, those of the arm in these conditions."""
    return lambda: of(attacks.on_gpus(runs.campaign(), **conditions))


def _on_own_machines() -> Case:
    """Two blocks on machines of their own, one for each side."""
    levels = runs.on(runs.campaign(), ARM, [4, 5])
    return of(runs.on(levels, BASELINE, [4, 5]))


def _first_visits_differ() -> Case:
    """Fewer first visits in the arm."""
    levels = runs.campaign().assign(first_visit_share=0.45)
    return of(attacks.of_arm(levels, first_visit_share=0.12))


def _aggregates_by(generator: str) -> Case:
    """Reports with aggregates alone, those of the arm by another version of the load generator."""
    levels = runs.campaign().assign(checks_warned="aggregate_only")
    return of(attacks.of_arm(levels, guidellm_version=generator))


def _with_pauses() -> Case:
    """Users who pause between their requests."""
    levels = runs.campaign()
    return of(levels.assign(workload=levels["workload"] + ";pause_s=8"))


def _builds_compared() -> Case:
    """Another build of the server in the arm, all other settings alike."""
    levels = runs.campaign().assign(arm_settings="a")
    return of(attacks.of_arm(levels, server_build="b"))


GROUNDS: dict[str, Callable[[], Case]] = {
    "other answers": _of_arm(request_output_tokens=32.0),
    "other prompts": _of_arm(request_prompt_tokens=1032.0),
    "other prefixes": _of_arm(
        workload=WORKLOAD.replace("prefix_count=20", "prefix_count=200")
    ),
    "other load": _of_arm(strategy="constant"),
    "work unknown": lambda: of(runs.undeclared((np.nan, np.nan), np.nan)),
    "prompts unknown": lambda: of(
        runs.undeclared((64.0, 64.0), 0.001).assign(request_prompt_tokens=np.nan)
    ),
    "activity not shown": _of_arm(exercised=pd.NA, activity="not shown"),
    "other build": _of_arm(server_build="lmcache/vllm 0.11.0"),
    "builds compared": _builds_compared,
    "build unknown": _of_arm(server_build=""),
    "hardware unknown": lambda: of(runs.campaign().assign(hardware="")),
    "own machines": _on_own_machines,
    "power": _on_gpus(gpu_power_limit_w=500.0),
    "clock set": _on_gpus(gpu_clock_mhz=1400.0),
    "clock": _on_gpus(gpu_clock_mhz=1750.0),
    "clocks equal": _on_gpus(gpu_clock_mhz=1880.0),
    "clocks unknown": lambda: of(runs.campaign().assign(gpus=2.0)),
    "throttled": _on_gpus(gpu_throttled="sw_thermal_slowdown", gpu_clock_mhz=1700.0),
    "other tier": _of_arm(
        checks_failed="tier_capacity", tier_reported_tokens=320_000.0
    ),
    "other tier, size unknown": _of_arm(checks_failed="tier_capacity"),
    "tier unknown": _of_arm(tier_tokens=np.nan),
    "undeclared tier": lambda: of(
        runs.with_values(runs.campaign(), BASELINE, EVERY_RUN, external_hit_ratio=0.3)
    ),
    "errors": lambda: of(attacks.with_errors(runs.campaign(), 0.007)),
    "few errors": lambda: of(attacks.with_errors(runs.campaign(), 0.0005)),
    "errors and parity": lambda: of(
        attacks.with_errors(runs.campaign(0.0, sd=0.003), 0.007)
    ),
    "parity, runs failed": lambda: of(
        runs.with_values(
            runs.campaign(0.0, sd=0.003), ARM, [4, 5], throughput_tok_s=0.0
        )
    ),
    "worse, baseline failed": lambda: of(
        runs.with_values(runs.campaign(-0.2), BASELINE, [4, 5], throughput_tok_s=0.0)
    ),
    "parity": lambda: of(runs.campaign(0.0, sd=0.003)),
    "inconclusive": lambda: of(runs.campaign(0.02, sd=0.08)),
    "very noisy": lambda: of(runs.campaign(0.02, sd=0.9)),
    "open loop": lambda: of(attacks.open_loop(answered=4.8)),
    "open loop, other rate": lambda: of(attacks.open_loop(sent=4.0)),
    "pauses": _with_pauses,
    "first visits": _first_visits_differ,
    "first visits alike": lambda: of(runs.campaign().assign(first_visit_share=0.45)),
    "other definitions": lambda: _aggregates_by("0.3.1"),
    "vllm bench": lambda: _aggregates_by("vllm bench serve"),
    "wrong answers": lambda: _changed(
        BASELINE, [3], **_checked("fail", "answers", "4 of 4 greedy answers changed")
    ),
    "fixed order": lambda: of(_in_one_order(runs.campaign())),
    "order unknown": lambda: of(
        runs.campaign().assign(run_started="", run_finished="")
    ),
    "sessions": lambda: of(_in_sessions()),
    "replicates apart": lambda: of(_with_replicate(0.05)),
    "replicates alike": lambda: of(_with_replicate(0.0)),
    "replicates of single runs": lambda: of(comparisons.published()),
    "starved arm": _of_arm(concurrency_shortfall=0.2, concurrency_mean=6.0),
    "starved baseline": lambda: of(_starved(BASELINE, 0.1)),
    "starved both": lambda: of(
        _starved(BASELINE, 0.1).assign(concurrency_shortfall=0.1)
    ),
    "starved past the peak": lambda: of(_past_the_peak()),
    "replicate": lambda: of(runs.campaign().assign(configuration="the same")),
    "contrasts": lambda: of(
        comparisons.with_sizes(levels_table(sd=0.004)),
        contrasts=[
            ["native-offload/20000", "native-offload/10000"],
            ["lmcache-redis", "native-offload"],
            ["idle", "native-offload"],
            ["native-offload", "idle"],
        ],
    ),
    "sizes of one arm": lambda: of(_sizes_of_one_arm()),
    "parity margin": lambda: of(levels_table(sd=0.03), margin=0.2, alpha=0.01),
    "models": lambda: of(levels_table(["a", "b", "c"], sd=0.05)),
}


def _sizes_of_one_arm() -> pd.DataFrame:
    """A tier that is too small, one that pays, and a larger one that pays no more; of another arm one of two is idle."""
    tiers = {
        "first": ("native-offload", 500, 0.02),
        "second": ("native-offload", 10_000, 0.3),
        "third": ("native-offload", 20_000, 0.3),
        "fourth": ("lmcache-redis", 10_000, 0.2),
        "idle": ("lmcache-redis", 20_000, 0.2),
    }
    effects = {name: effect for name, (_, _, effect) in tiers.items()}
    levels = levels_table(effects={BASELINE: 0.0, **effects}, sd=0.004)
    for name, (scenario, size, _) in tiers.items():
        levels.loc[levels["scenario"] == name, ["scenario", "cpu_blocks"]] = [
            scenario,
            size,
        ]
    return levels


def _in_one_order(levels: pd.DataFrame) -> pd.DataFrame:
    """The same campaign, the baseline first in every block, with a drift."""
    campaign_start = pd.Timestamp("2026-01-01T00:00Z")
    # Of a block, which begins each hour.
    begin_minutes = levels["scenario"].map({BASELINE: 0, ARM: 25})
    begins = (
        campaign_start
        + pd.to_timedelta(levels["run"], unit="h")
        + pd.to_timedelta(begin_minutes, unit="min")
    )
    ends = begins + pd.Timedelta(minutes=20)
    changed = levels.assign(
        run_started=[time.isoformat() for time in begins],
        run_finished=[time.isoformat() for time in ends],
    )
    changed[THROUGHPUT] *= np.exp(0.02 * changed["run"])
    return changed


def _in_sessions() -> pd.DataFrame:
    """Eight runs in two sessions, between which the effect differs."""
    levels = runs.campaign(runs=8, sd=0.003)
    late = levels["run"] > 4
    levels.loc[late & (levels["scenario"] == ARM), THROUGHPUT] *= 1.1
    return pd.concat([levels[~late], runs._moved(levels[late], 100.0)])


def _with_replicate(apart: float) -> pd.DataFrame:
    """Two cells of one configuration that differ by so much, and another arm."""
    effects = {BASELINE: 0.0, ARM: 0.06, "lmcache-redis": 0.06 + apart}
    levels = levels_table(effects=effects, sd=0.004)
    alike = levels["scenario"].isin((ARM, "lmcache-redis"))
    return levels.assign(configuration=levels["configuration"].where(~alike, "alike"))


def _starved(scenario: str, short: float) -> pd.DataFrame:
    levels = runs.campaign().assign(concurrency_shortfall=0.0)
    levels.loc[levels["scenario"] == scenario, "concurrency_shortfall"] = short
    return levels


def _past_the_peak() -> pd.DataFrame:
    """Too few requests in flight at a level above the arm's peak."""
    levels = _starved(ARM, 0.2)
    lower = (levels["scenario"] == ARM) & (levels["level"] == 8)
    levels.loc[lower, THROUGHPUT] *= 2
    return levels


IDLE: dict[str, Callable[[], Case]] = {
    "idle, worse": lambda: of(idle.idle(np.log(0.61))),
    "idle, bounded": lambda: of(idle.idle(0.0, sd=0.005)),
    "idle, better": lambda: of(idle.idle(0.3)),
    "idle, undecided": lambda: of(idle.idle(-0.02, sd=0.1)),
    "idle, two runs": lambda: of(idle.idle(-0.5, runs=2)),
    "idle, one run": lambda: of(idle.idle(-0.5, runs=1)),
    "idle, one failed": lambda: _idle_with([2], checks_failed="window"),
    "idle, two hung": lambda: _idle_with([2, 3], throughput_tok_s=0.0),
    "idle, one unknown": lambda: _idle_with([2], exercised=pd.NA),
    "idle, elsewhere": lambda: _idle_with(EVERY_RUN, hardware="beef"),
    "idle, baseline failed": lambda: _idle_with([2, 3], BASELINE, throughput_tok_s=0.0),
    "idle, no row": lambda: _idle_with([1, 2, 3], throughput_tok_s=np.nan),
    "beyond the tier": lambda: of(
        idle.with_columns(idle.ahead(), idle.ACTIVE, **idle.SMALL_TIER)
    ),
}


def _idle_with(numbers: list[int], scenario: str = "idle", **values: Any) -> Case:
    return of(runs.with_values(idle.idle(-0.5), scenario, numbers, **values))


def _goodput(share: Callable[[str, int], float], **changes: Any) -> Case:
    levels = with_goodput(
        levels_table(effects={BASELINE: 0.0, ARM: 0.0, "lmcache-redis": 0.0}), share
    )
    for column, value in changes.items():
        levels.loc[levels["scenario"] == ARM, column] = value
    return of(levels)


def _nine_tenths(_scenario: str, _level: int) -> float:
    return 0.9


GOODPUT: dict[str, Callable[[], Case]] = {
    "goodput": lambda: _goodput(lambda _, level: 1 / (1 + (level / 14) ** 6)),
    "goodput, none in the arm": lambda: _goodput(
        lambda scenario, _: 0.0 if scenario == ARM else 0.9
    ),
    "goodput, none in the baseline": lambda: _goodput(
        lambda scenario, _: 0.0 if scenario == BASELINE else 0.9
    ),
    "goodput, none": lambda: _goodput(lambda *_: 0.0),
    "goodput, unknown": lambda: _goodput(_nine_tenths, goodput_per_s=np.nan),
    "goodput, few": lambda: _goodput(_nine_tenths, goodput_settled=9),
    "goodput, starved": lambda: _goodput(_nine_tenths, concurrency_shortfall=0.2),
}


def _random(seed: int) -> Callable[[], Case]:
    """Make a campaign of three to eight blocks, each side of each in a state drawn at random."""

    def make() -> Case:
        draw = random.Random(seed)
        states = [*runs.CHANGES]
        # The first one, of a sound run, more often than any other.
        weights = [6] + [1] * (len(states) - 1)

        def state() -> str:
            return draw.choices(states, weights)[0]

        blocks = draw.choice((3, 5, 8))
        pairs = [(state(), state()) for _ in range(blocks)]
        effect = draw.choice((-0.3, 0.0, 0.3))
        return Case(runs.in_states(effect, pairs), {}, tables_only=True)

    return make


CASES: Mapping[str, Callable[[], Case]] = {
    **RUNS,
    **GROUNDS,
    **IDLE,
    **GOODPUT,
    **{f"random {seed}": _random(seed) for seed in range(RANDOM_CAMPAIGNS)},
}
