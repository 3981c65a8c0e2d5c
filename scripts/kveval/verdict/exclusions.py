"""Why a run is left out of a comparison: every reason there is, and the rule that finds it.

Runs are compared in pairs (`pairing.py`). A pair is usable if both of its runs have a value of the metric, repeat no
other run, were measured on equal machines, passed the checks of the metric, and show what is asked of the arm: what it
gains, or, where it never was active, what it costs. Every other run has an `Exclusion` whose code is one of `REASONS`,
the complete list; docs/verdicts.md shows it. A code is followed wherever something is decided; words are for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from kveval.load.sample_sizes import MIN_RUNS
from kveval.store.run_file import IMPORTED
from kveval.tables.cells import THROUGHPUT, parse_names
from kveval.tables.levels.checks_level import STARVED, completed, errors
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.levels.latencies import TITLES, parse_reasons
from kveval.tables.levels.noise import QUANTILES, latencies_needed, state_bound
from kveval.tables.levels.outcomes import (
    LEVEL_FAILED,
    failed_checks,
    outcomes_of,
)
from kveval.tables.levels.records import LATENCIES
from kveval.verdict.comparability import is_refused
from kveval.verdict.pairing import PairedRuns, Row
from kveval.verdict.sides import declared_work, number

Side = Literal["arm", "reference"]
SIDES: tuple[Side, Side] = ("arm", "reference")
Sided = tuple[Row | None, Row | None]
MIN_SETTLED = 10
"""The fewest settled requests, or sessions, of a level for a verdict on its goodput."""

# Beyond what came before, as predictions and counters differ.
_LEFTOVER_SHARE = 0.03
# Columns of a level that two measurements never have in common to the digit.
_MEASURED = (
    THROUGHPUT,
    *("requests_completed", "requests_incomplete", "requests_errored"),
    *(f"{name}_ms_{label}" for name in LATENCIES for label in QUANTILES),
)


class Reason(NamedTuple):
    """A reason to leave a run out.

    `words`: of a run, with the exclusion's facts in braces; "" where the reason of another run says it. `meaning`: which
    runs have it. `summary`: the same for several runs beside a verdict, "" if it is not worth saying there. `failed`:
    the run would have counted against its cell, so that the cell's other runs speak too well of it.
    """

    words: str
    meaning: str
    summary: str = ""
    failed: bool = False


_NOT_MEASURED, _NO_VALUE, _CHECK = "not measured", "without a value", "failed a check"
_NO_LEVEL = f"{_NOT_MEASURED} at this level"
REASONS: Mapping[str, Reason] = {
    "not_measured": Reason(
        _NOT_MEASURED,
        "the campaign asks for the run, or the other cell has it, and this cell lacks it",
        _NOT_MEASURED,
        failed=True,
    ),
    "not_imported": Reason(
        _NOT_MEASURED,
        "the other cell of imported results has the run, and this one lacks it; nobody knows how many there should be",
        _NOT_MEASURED,
    ),
    "level_not_measured": Reason(
        _NO_LEVEL, "the run lacks the compared level", _NOT_MEASURED, failed=True
    ),
    "level_not_imported": Reason(
        _NO_LEVEL, "the imported run lacks the compared level", _NOT_MEASURED
    ),
    "level_failed": Reason(
        "failed at this level{errors}",
        "the level could not be measured",
        "failed at this level",
        failed=True,
    ),
    "delivered_nothing": Reason(
        "delivered nothing",
        "no output token was delivered in the window",
        "delivered nothing",
        failed=True,
    ),
    "value_of_0": Reason(
        "with a value of 0",
        "the metric is 0 although tokens were delivered",
        "with a value of 0",
        failed=True,
    ),
    "not_reached": Reason(
        "too slow to be seen before the window closed",
        "requests were cut off before so many of them had the latency that the quantile is known",
        "too slow to be seen before the window closed",
        failed=True,
    ),
    "no_throughput": Reason(
        _NO_VALUE, "the throughput has no value", _NO_VALUE, failed=True
    ),
    "no_value": Reason(_NO_VALUE, "another metric has no value", _NO_VALUE),
    "latency_unknown": Reason(
        "{latency} is unknown: {why}",
        "the latency is 0 or contradicts the report's own times",
        _NO_VALUE,
    ),
    "latency_not_observed": Reason(
        "{latency} was not observed", "the report has no such latency", _NO_VALUE
    ),
    "infinite_value": Reason(
        "with an infinite value",
        "the metric is infinite",
        "with an infinite value",
        failed=True,
    ),
    "negative_value": Reason(
        "with a negative value",
        "the metric is negative",
        "with a negative value",
        failed=True,
    ),
    "copy": Reason(
        "equal to run {original} to the digit",
        "every number is that of another run of the cell, as only a copy has it; the run counts once",
        "copied",
    ),
    "copy_of_other_cell": Reason(
        "equal to run {original} of {cell} to the digit",
        "every number is that of a run of the other cell",
        "copied",
    ),
    "other_server": Reason(
        "with another server than the other run of its pair",
        "the servers of the pair differ in what refuses a comparison, and enough others do not",
        "measured with another server",
    ),
    "other_machine": Reason(
        "on another machine", "the other run of the pair ran on another machine"
    ),
    "leftover_hits": Reason(
        "its caches served {served_percent:.0f} % of the prompt tokens, of which {offered_percent:.0f} % had come before in"
        " the level: they were not empty",
        "caches served more than had come before in the level: they were not empty at its start",
        "caches not empty at the start",
    ),
    "two_states": Reason(
        "its rate of tokens changed by {change_percent:+.0f} % within the window",
        "the rate of tokens had two states within the window, and enough other runs had one",
        "unsteady",
    ),
    "server_failed": Reason(
        "{checks}",
        "a check says that the server failed: no request was completed, or more than 1 % failed",
        _CHECK,
        failed=True,
    ),
    "check_failed": Reason(
        "{checks}",
        "a check says that the level was not measured as declared",
        _CHECK,
    ),
    "open_loop": Reason(
        "the throughput of an open loop is the rate at which requests are sent: compare latencies",
        "throughput of an open loop, which the load sets: no run is to blame",
    ),
    "pauses": Reason(
        "the throughput of users with pauses follows from their pauses: compare latencies",
        "throughput of users with pauses, which the load sets: no run is to blame",
    ),
    "few_latencies": Reason(
        "{observed:.0f} latencies observed, {needed} needed",
        "too few latencies were observed for the quantile",
        "left out",
    ),
    "few_settled": Reason(
        "{settled:.0f} met or missed the limits, {needed} needed",
        "too few requests or sessions were settled for a goodput",
        "left out",
    ),
    "starved": Reason(
        "{short_percent:.0f} % fewer requests in flight than asked for",
        "goodput of a level with fewer requests in flight than asked for, which makes limits easier to meet",
        "left out",
    ),
    "not_active": Reason(
        "not active", "by the server's counters a side was not active"
    ),
    "activity_unknown": Reason(
        "activity not known",
        "of an arm that was active in no known run: whether it was in this one is not known",
    ),
    "other_time": Reason(
        "measured at another time than those of its baseline",
        "the two runs of this number were not measured together, and enough others were",
    ),
    "other_of_pair": Reason(
        "", "nothing is wrong with it, but the other run of its pair is left out"
    ),
    "no_pair": Reason("", "the other cell has no run that it is compared with"),
}
"""Code -> the reason; all there are."""
SET_BY_THE_LOAD = frozenset({"open_loop", "pauses"})
"""Reasons why throughput is not compared where the load sets it."""
_LACKING = frozenset({"level_not_measured", "level_not_imported"})
_WITHOUT_VALUE = frozenset({"no_throughput", "no_value"})
# Failed checks that say that the server failed, and not that the level was measured badly.
_OF_SERVER = (LEVEL_FAILED, completed.name, errors.name)


@dataclass(frozen=True)
class Exclusion:
    """A run of one side that is left out of a comparison; `code`: one of REASONS, `facts`: the values in its words."""

    code: str
    run: int
    side: Side
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def failed(self) -> bool:
        """Whether the run counts against its cell; what neither cell has is no finding about one of them."""
        return REASONS[self.code].failed and not self.facts.get("on_both_sides")

    @property
    def has_words(self) -> bool:
        """Whether its own reason leaves the run out, and not that of another run."""
        return bool(REASONS[self.code].words)

    @property
    def summary(self) -> str:
        """The words for several such runs beside a verdict, "" if they are not worth saying there."""
        return "" if self.facts.get("on_both_sides") else REASONS[self.code].summary


@dataclass(frozen=True, eq=False)
class RunPair:
    """Two runs that are compared: their rows at the level, None without one, and why they are left out.

    `with_smaller`: whether the reference is a smaller size of the arm. `gaps`: exclusions of runs without a value, or with
    that of another run; `defects`: of runs whose value may enter no verdict; `unsteady`: of runs whose value enters with a
    bound, unless enough others need none.
    """

    arm_run: int
    reference_run: int
    rows: Sided
    with_smaller: bool = False
    gaps: tuple[Exclusion, ...] = ()
    defects: tuple[Exclusion, ...] = ()
    unsteady: tuple[Exclusion, ...] = ()

    @property
    def known_rows(self) -> tuple[Row, Row]:
        """The rows of a pair that has both."""
        arm, reference = self.rows
        assert arm is not None
        assert reference is not None
        return arm, reference

    @property
    def activity(self) -> tuple[bool | None, bool | None]:
        """Whether counters show arm and reference active, None where that is not known.

        A smaller size of the arm is as good a reference where it served nothing: that it is too small is what was asked.
        """
        arm, reference = map(is_active, self.rows)
        if self.with_smaller and not reference:
            reference = None
        return arm, reference

    @property
    def activity_counts(self) -> bool:
        """Whether the counters say anything: at rest they do not show an idle arm where nothing was delivered."""
        known = self.activity != (None, None)
        return known and not any(gap.failed for gap in self.gaps)

    @property
    def idle(self) -> bool:
        """Whether counters show a side idle."""
        return self.activity_counts and False in self.activity


@dataclass(frozen=True)
class UsableRuns:
    """The pairs of runs of a comparison, which of them may enter a verdict, and why each other run may not."""

    paired: PairedRuns
    pairs: tuple[RunPair, ...] = ()

    @cached_property
    def with_values(self) -> list[RunPair]:
        """The pairs with a value on both sides, by the run of the reference."""
        known = [pair for pair in self.pairs if not pair.gaps]
        return sorted(known, key=lambda pair: pair.reference_run)

    @cached_property
    def of_known_activity(self) -> list[RunPair]:
        """The pairs whose counters say whether the arms were active."""
        return [pair for pair in self.pairs if pair.activity_counts]

    @cached_property
    def never_active(self) -> bool:
        """Whether counters show the arm idle wherever they were read, against a reference without an active tier."""
        idle = all(
            pair.activity[0] is False and not pair.activity[1]
            for pair in self.of_known_activity
        )
        active = any(pair.activity[0] for pair in self.pairs)
        return bool(self.of_known_activity) and idle and not active

    @cached_property
    def idle(self) -> set[RunPair]:
        """The pairs in which counters show a side idle."""
        return {pair for pair in self.pairs if pair.idle}

    @cached_property
    def aside(self) -> set[RunPair]:
        """The pairs that do not show what is asked of the arm: what it gains, or what it costs if it never was active.

        Only runs that are known to be idle show what an idle arm costs.
        """
        return {*self.with_values} - self.idle if self.never_active else self.idle

    @cached_property
    def usable(self) -> list[RunPair]:
        """The pairs that may enter a verdict, by the run of the reference."""
        sound = [
            pair
            for pair in self.with_values
            if not pair.defects and pair not in self.aside
        ]
        steady = [pair for pair in sound if not pair.unsteady]
        return steady if len(steady) >= MIN_RUNS else sound

    @property
    def enough(self) -> bool:
        """Whether the usable pairs are enough for a verdict."""
        return len(self.usable) >= MIN_RUNS

    @cached_property
    def kept(self) -> list[RunPair]:
        """The pairs that give the effect: the usable ones; of too few, all that show what is asked, else all."""
        if self.enough:
            return self.usable
        asked = [pair for pair in self.with_values if pair not in self.aside]
        return asked or self.with_values

    @cached_property
    def too_idle(self) -> bool:
        """Whether idle runs are the reason for no verdict, as with them there would have been enough."""
        if self.never_active:
            return True
        sound_idle = [pair for pair in self.idle if not pair.defects]
        otherwise_enough = len(self.usable) + len(sound_idle) >= MIN_RUNS
        all_idle = self.idle.issuperset(self.with_values)
        return bool(self.idle) and not self.enough and (otherwise_enough or all_idle)

    @property
    def active(self) -> bool | None:
        """Whether enough runs were active, None if that is not known of any."""
        return not self.too_idle if self.of_known_activity else None

    @property
    def blocks(self) -> int:
        """How many blocks there would be if every run were usable."""
        pairing, absent = self.paired.pairing, self.paired.absent
        lacking = len(absent[0] | absent[1])
        return len(pairing.pairs) + len(pairing.separate_pairs) + lacking

    @cached_property
    def exclusions(self) -> tuple[Exclusion, ...]:
        """Why runs are left out, each with one reason, by side and number."""
        reasons = {
            (exclusion.side, exclusion.run): exclusion
            for exclusion in (
                *self._left_unsteady(),
                *self._aside(),
                *self._absent(),
                *self._separate(),
            )
        }
        for pair in self.pairs:
            reasons |= {
                (exclusion.side, exclusion.run): exclusion
                for exclusion in (*pair.gaps, *pair.defects)
            }
        for silent in self._silent(reasons.keys()):
            reasons.setdefault((silent.side, silent.run), silent)
        return tuple(reasons[key] for key in sorted(reasons))

    def _left_unsteady(self) -> Iterator[Exclusion]:
        """Yield the runs that enough others are steadier than."""
        for pair in self.pairs:
            if pair not in self.kept:
                yield from pair.unsteady

    def _aside(self) -> Iterator[Exclusion]:
        """Yield the runs that do not show what is asked of the arm."""
        for pair in self.pairs:
            if self.never_active and pair in self.aside:
                yield Exclusion("activity_unknown", pair.arm_run, "arm")
            elif not self.never_active and pair.activity[0] is False:
                yield Exclusion("not_active", pair.arm_run, "arm")
            elif not self.never_active and pair.activity[1] is False:
                yield Exclusion("not_active", pair.reference_run, "reference")

    def _absent(self) -> Iterator[Exclusion]:
        code = "not_imported" if self.paired.imported else "not_measured"
        for side, runs in zip(SIDES, self.paired.absent, strict=True):
            yield from (Exclusion(code, run, side) for run in runs)

    def _separate(self) -> Iterator[Exclusion]:
        for pair in self.paired.pairing.separate_pairs:
            for side, run in zip(SIDES, pair, strict=True):
                yield Exclusion("other_time", run, side)

    def _silent(self, named: Set[tuple[Side, int]]) -> Iterator[Exclusion]:
        """Yield the runs that the reason of another run leaves out, or that belong to no pair."""
        paired: set[tuple[Side, int]] = set()
        for pair in self.pairs:
            runs: list[tuple[Side, int]] = [
                ("arm", pair.arm_run),
                ("reference", pair.reference_run),
            ]
            paired.update(runs)
            if named.isdisjoint(runs):
                continue
            for side, run in runs:
                yield Exclusion("other_of_pair", run, side)
        for place, side in enumerate(SIDES):
            for run in self.paired.measured[place]:
                if (side, run) not in paired:
                    yield self._unpaired(place, run)

    def _unpaired(self, place: int, run: int) -> Exclusion:
        """Why a run of a side belongs to no pair: by its own failure, which counts, where the other cell lacks it."""
        side, row = SIDES[place], self.paired.row(place, run)
        if row is not None and run in self.paired.absent[1 - place]:
            own = unusable(row, self.paired.metric, side)
            if own is not None and own.failed:
                return own
        return Exclusion("no_pair", run, side)


def usable_runs(paired: PairedRuns) -> UsableRuns:
    """Return which pairs of runs may enter a verdict, and why each other run may not."""
    originals: dict[tuple[float | None, ...], tuple[Side, int]] = {}
    pairs = []
    for arm_run, reference_run in paired.pairing.pairs:
        pair = RunPair(
            arm_run,
            reference_run,
            (paired.row(0, arm_run), paired.row(1, reference_run)),
            paired.with_smaller,
        )
        gaps = tuple(_gaps(pair, paired))
        if not gaps:
            gaps = tuple(_copies(pair, paired, originals))
        defects = () if gaps else tuple(_defects(pair, paired))
        unsteady = () if gaps else tuple(_unsteady(pair, paired.metric))
        pairs.append(replace(pair, gaps=gaps, defects=defects, unsteady=unsteady))
    return UsableRuns(paired, tuple(pairs))


def is_active(row: Row | pd.Series[Any] | None) -> bool | None:
    """Return whether the arm was active, by a row of levels.csv or peak.csv; None without a row, or if it is not known.

    It is what `tables.levels.activity` decided of the level, or of all runs at the peak.
    """
    if row is None or pd.isna(row["exercised"]):
        return None
    return bool(row["exercised"])


def unusable(row: Row, metric: str, side: Side = "arm") -> Exclusion | None:
    """Return why a level may not enter a verdict on a metric, whatever it is compared with; None if it may."""
    return missing_value(row, metric, side) or unfit(row, metric, side)


def missing_value(row: Row, metric: str, side: Side = "arm") -> Exclusion | None:
    """Return why a level has no value of a metric that can be compared; None if it has one: finite and above 0."""
    run = int(row["run"])
    if LEVEL_FAILED in failed_checks(row, True):
        errors = [
            outcome.facts.get("error", outcome.message)
            for outcome in outcomes_of(row)
            if outcome.code == LEVEL_FAILED
        ]
        return Exclusion("level_failed", run, side, {"errors": errors})
    value = number(row, metric)
    # A level that delivered nothing has a goodput: nothing met the limits.
    if value == 0 or (metric != GOODPUT and number(row, THROUGHPUT) == 0):
        nothing = number(row, THROUGHPUT) == 0
        return Exclusion("delivered_nothing" if nothing else "value_of_0", run, side)
    if np.isnan(value):
        return _no_value(row, metric, side)
    if np.isinf(value):
        return Exclusion("infinite_value", run, side)
    return Exclusion("negative_value", run, side) if value < 0 else None


def _no_value(row: Row, metric: str, side: Side) -> Exclusion:
    """Why a level has no number of a metric. A latency that was not recorded says nothing of how long it was."""
    run = int(row["run"])
    if metric in parse_names(row.get("not_reached")):
        return Exclusion("not_reached", run, side)
    if metric == THROUGHPUT:
        return Exclusion("no_throughput", run, side)
    return unknown_latency(row, metric, side) or Exclusion("no_value", run, side)


def unknown_latency(row: Row, metric: str, side: Side) -> Exclusion | None:
    """Return why a measured level has no value of a latency; None if it has one, or was not measured."""
    name, _, _ = metric.partition("_ms_")
    if name not in TITLES or number(row, metric) > 0 or not number(row, THROUGHPUT) > 0:
        return None
    run, facts = int(row["run"]), {"latency": TITLES[name]}
    if why := parse_reasons(row.get("latencies_unknown")).get(name):
        return Exclusion("latency_unknown", run, side, facts | {"why": why})
    if metric in parse_names(row.get("not_reached")):
        return Exclusion("not_reached", run, side, facts)
    return Exclusion("latency_not_observed", run, side, facts)


def unfit(row: Row, metric: str, side: Side = "arm") -> Exclusion | None:
    """Return why a level with a value may not enter a verdict on a metric, None if it may."""
    run = int(row["run"])
    if failed := failed_checks(row, metric in (THROUGHPUT, GOODPUT)):
        of_server = any(name in _OF_SERVER for name in failed)
        code = "server_failed" if of_server else "check_failed"
        return Exclusion(code, run, side, {"checks": failed})
    if metric == THROUGHPUT:
        return _set_by_the_load(row, run, side)
    if metric == GOODPUT:
        return _unfit_goodput(row, run, side)
    counted = row["ttft_count" if metric.startswith("ttft") else "requests_completed"]
    needed = latencies_needed(metric.rsplit("_", 1)[1])
    if counted >= needed:
        return None
    facts = {"observed": float(counted), "needed": needed}
    return Exclusion("few_latencies", run, side, facts)


def _set_by_the_load(row: Row, run: int, side: Side) -> Exclusion | None:
    if declared_work(row).get("pause_s", "0") != "0":
        return Exclusion("pauses", run, side)
    if row.get("rate_req_s", np.nan) > 0:
        return Exclusion("open_loop", run, side)
    return None


def _unfit_goodput(row: Row, run: int, side: Side) -> Exclusion | None:
    if row["concurrency_shortfall"] > STARVED:
        short = 100 * float(row["concurrency_shortfall"])
        return Exclusion("starved", run, side, {"short_percent": short})
    if row["goodput_settled"] >= MIN_SETTLED:
        return None
    facts = {"settled": float(row["goodput_settled"]), "needed": MIN_SETTLED}
    return Exclusion("few_settled", run, side, facts)


def machine(row: Row) -> str:
    """Return a text that is equal on equal machines, "" if the machine was not recorded."""
    hardware = row.get("hardware")
    return hardware if isinstance(hardware, str) else ""


def _sided_runs(pair: RunPair) -> Iterator[tuple[Side, int, Row | None]]:
    yield "arm", pair.arm_run, pair.rows[0]
    yield "reference", pair.reference_run, pair.rows[1]


def _gaps(pair: RunPair, paired: PairedRuns) -> list[Exclusion]:
    """The runs of a pair that have no value; none if both have one."""
    absent = "level_not_imported" if paired.imported else "level_not_measured"
    exclusions = []
    for side, run, row in _sided_runs(pair):
        if row is None:
            exclusions.append(Exclusion(absent, run, side))
        elif gap := missing_value(row, paired.metric, side):
            exclusions.append(gap)
    codes = {exclusion.code for exclusion in exclusions}
    lacks_alike = codes <= _LACKING or codes <= _WITHOUT_VALUE
    blameless = not any(exclusion.failed for exclusion in exclusions)
    if len(exclusions) == len(SIDES) and (lacks_alike or blameless):
        return [
            replace(exclusion, facts={**exclusion.facts, "on_both_sides": True})
            for exclusion in exclusions
        ]
    return exclusions


def _copies(
    pair: RunPair,
    paired: PairedRuns,
    originals: dict[tuple[float | None, ...], tuple[Side, int]],
) -> Iterator[Exclusion]:
    """Yield the runs of a pair that repeat one of `originals` to the digit; others are added to it."""
    for (side, run, _), row in zip(_sided_runs(pair), pair.known_rows, strict=True):
        measured = [number(row, name) for name in _MEASURED]
        # NaN is not equal to itself.
        values = tuple(None if np.isnan(value) else value for value in measured)
        original_side, original = originals.setdefault(values, (side, run))
        if (original_side, original) == (side, run):
            continue
        facts: dict[str, Any] = {"original": original}
        if original_side == side:
            yield Exclusion("copy", run, side, facts)
        else:
            facts["cell"] = paired.labels[SIDES.index(original_side)]
            yield Exclusion("copy_of_other_cell", run, side, facts)


def _unsteady(pair: RunPair, metric: str) -> Iterator[Exclusion]:
    """Yield the runs of a pair whose windows have two states, so that their rate is known with a bound alone."""
    if metric not in (THROUGHPUT, GOODPUT):
        return
    for side, row in zip(SIDES, pair.known_rows, strict=True):
        change = number(row, "throughput_drift")
        if state_bound(change, number(row, "throughput_drift_se")):
            facts = {"change_percent": 100 * change}
            yield Exclusion("two_states", int(row["run"]), side, facts)


def _defects(pair: RunPair, paired: PairedRuns) -> Iterator[Exclusion]:
    """Yield the runs of a pair whose values may enter no verdict; the last one of a side counts."""
    arm, reference = pair.known_rows
    if machine(arm) != machine(reference):
        yield Exclusion("other_machine", pair.arm_run, "arm")
    elif is_refused(arm, reference, paired.differs):
        yield Exclusion("other_server", pair.arm_run, "arm")
    for side, row in zip(SIDES, (arm, reference), strict=True):
        if leftover := _leftover_hits(row, side):
            yield leftover
        if defect := unfit(row, paired.metric, side):
            yield defect


def _leftover_hits(row: Row, side: Side) -> Exclusion | None:
    """Return that a level's caches served more than can have come before in it, None if they did not."""
    device = number(row, "prefix_hit_ratio")
    behind = float(np.nan_to_num(number(row, "external_hit_ratio")))
    served = device + (1 - device) * behind
    offered = number(row, "predicted_offered_ratio")
    # Who measured results that were imported may have left caches as they were, with every arm.
    if np.isnan(offered) and row.get("engine") != IMPORTED:
        offered = 1 - number(row, "first_visit_share") - number(row, "unshared_share")
    if not served > offered + _LEFTOVER_SHARE:
        return None
    facts = {"served_percent": 100 * served, "offered_percent": 100 * offered}
    return Exclusion("leftover_hits", int(row["run"]), side, facts)
