"""Makes runs of results: the levels of one configuration are a run, the same levels again are further runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from kveval.host.findings import Remark
from kveval.plugins.imports.interpret import FoundLevel, Result
from kveval.plugins.imports.remarks import remark

# Lengths that are drawn at random differ from level to level.
_SAME_LENGTH = 0.05


@dataclass(frozen=True)
class PlacedLevel:
    """A level of a result in the run that it belongs to; without one, a result that gave nothing."""

    result: Result
    level: FoundLevel | None

    @property
    def number(self) -> int:
        """The level; if there is none, the one that the name declares."""
        if self.level is not None:
            return self.level.level
        return self.result.declared.rate or 0

    @property
    def start(self) -> float:
        """The level's start, epoch seconds."""
        return self.level.facts.start if self.level else 0.0

    @property
    def usable(self) -> FoundLevel | None:
        """The level if something can be computed of it."""
        return self.level if self.level and not self.level.facts.error else None


@dataclass(frozen=True)
class Draft:
    """One run, of results of one tree, in the order of its levels."""

    members: tuple[PlacedLevel, ...]

    @property
    def first(self) -> Result:
        """Its first result that gave something."""
        return next(member.result for member in self.members if member.level)

    @property
    def cell(self) -> tuple[str, ...]:
        """The cell that it is a run of, as texts; what is not known of it is told apart by what the results call it."""
        return cell_key(self.first)

    @property
    def start(self) -> float:
        """The start of its first level."""
        return min(member.start for member in self.members if member.level)

    @property
    def levels(self) -> frozenset[int]:
        """The levels that it has results of."""
        return frozenset(member.number for member in self.members if member.usable)

    def continues(self, other: "Draft") -> bool:
        """Whether two runs are alike in everything but their levels, of which they share none."""
        tokens = zip(self._tokens, other._tokens, strict=True)
        return (
            not {member.number for member in self.members}
            & {member.number for member in other.members}
            and self._kind == other._kind
            and all(
                math.isclose(mine, others, rel_tol=_SAME_LENGTH)
                for mine, others in tokens
            )
        )

    @property
    def _kind(self) -> tuple[Any, ...]:
        """Everything but levels that the parts of a run have in common: tree, name, arguments, prompts and arrivals."""
        facts = [member.level.facts for member in self.members if member.level]
        # How many prefixes there are may follow the level.
        shapes = {
            (d.prompt_tokens, d.output_tokens, d.prefix_tokens, d.turns)
            for level in facts
            if (d := level.data)
        }
        first = self.first
        declared = replace(first.declared, rate=None)
        closed = all(level.streams is not None for level in facts)
        return first.root, declared, first.configuration, shapes, closed

    @property
    def _tokens(self) -> tuple[float, float]:
        """Mean tokens of a prompt and of an answer, 0 where they are not known."""
        known = [
            member.level.facts.tokens
            for member in self.members
            if member.level and member.level.facts.tokens
        ]
        return (
            (fmean(prompt for prompt, _ in known), fmean(answer for _, answer in known))
            if known
            else (0.0, 0.0)
        )


def cell_key(result: Result) -> tuple[str, ...]:
    """Return what distinguishes the cell of a result from others, and the machines and releases that share none."""
    kind = tuple(str(value) for value in result.kind)
    if result.known:
        model, scenario, blocks = result.cell
        return ("", str(model), str(scenario), f"{blocks:09d}", *kind)
    declared = replace(result.declared, rate=None)
    # After the cells that are known.
    return ("?", *map(str, result.cell), str(declared), *kind)


def drafts_of(results: Iterable[Result]) -> list[Draft]:
    """Return the runs: per folder, name and configuration, one level of each number, in the order of their times.

    A result that gave nothing joins the run it was meant for as a level that failed.
    """
    named: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        folder = result.files.place.rpartition("/")[0]
        declared = replace(result.declared, rate=None)
        named.setdefault((result.root, folder, declared), []).append(result)
    drafts: list[Draft] = []
    for group in named.values():
        configurations: dict[tuple[Any, ...], dict[int, list[PlacedLevel]]] = {}
        for result in group:
            alike = (cell_key(result), result.configuration)
            for level in result.levels:
                levels = configurations.setdefault(alike, {})
                placed = PlacedLevel(result, level)
                levels.setdefault(level.level, []).append(placed)
        runs = [
            run for levels in configurations.values() for run in _repetitions(levels)
        ]
        _add_failed(runs, [result for result in group if result.problem])
        drafts += [_draft(run) for run in runs if _has_usable(run)]
    return drafts


def _has_usable(run: Iterable[PlacedLevel]) -> bool:
    return any(member.usable for member in run)


def merge_partial_runs(
    drafts: Iterable[Draft],
) -> tuple[list[Draft], list[tuple[Draft, Remark]]]:
    """Return the runs that can be compared, in the order of their cells and times, and why others cannot.

    If the runs of a cell have no common level, those that differ only in their levels are joined to one run. Then runs
    that share a level are kept, those with most levels first.
    """
    cells: dict[tuple[str, ...], list[Draft]] = {}
    for draft in drafts:
        cells.setdefault(draft.cell, []).append(draft)
    kept: list[Draft] = []
    left_out: list[tuple[Draft, Remark]] = []
    for runs in cells.values():
        own = _with_common_level(runs if _common(runs) else _merge_parts(runs))
        kept += own
        kept_members = {id(member) for run in own for member in run.members}
        for run in (run for run in runs if id(run.members[0]) not in kept_members):
            levels, others = sorted(run.levels), sorted(_common(own))
            reason = remark(
                "no_common_level",
                "it shares no level ({levels}) with the cell's other runs ({other_levels}), and differs in more than levels",
                levels=levels,
                other_levels=others,
            )
            left_out.append((run, reason))
    return sorted(kept, key=lambda run: (run.cell, run.start)), left_out


def _common(runs: Sequence[Draft]) -> frozenset[int]:
    return frozenset.intersection(*(run.levels for run in runs))


def _merge_parts(runs: Iterable[Draft]) -> list[Draft]:
    """Join runs that are alike but for their levels: each to the first one that has none of its levels."""
    done: list[Draft] = []
    for run in sorted(runs, key=lambda run: run.start):
        first = next(
            (number for number, other in enumerate(done) if run.continues(other)), None
        )
        if first is None:
            done.append(run)
        else:
            done[first] = _draft((*done[first].members, *run.members))
    return done


def _with_common_level(runs: Sequence[Draft]) -> list[Draft]:
    kept: list[Draft] = []
    for run in sorted(runs, key=lambda run: (-len(run.levels), run.start)):
        if not kept or _common([*kept, run]):
            kept.append(run)
    return kept


def _draft(members: Iterable[PlacedLevel]) -> Draft:
    return Draft(tuple(sorted(members, key=lambda member: member.number)))


def _repetitions(
    levels: Mapping[int, Sequence[PlacedLevel]],
) -> list[list[PlacedLevel]]:
    """Return run k as the k-th occurrence in time of every level."""
    repetitions: list[list[PlacedLevel]] = []
    for members in levels.values():
        for k, member in enumerate(sorted(members, key=lambda member: member.start)):
            if k == len(repetitions):
                repetitions.append([])
            repetitions[k].append(member)
    return repetitions


def _add_failed(runs: Sequence[list[PlacedLevel]], failed: Iterable[Result]) -> None:
    for result in failed:
        rate = result.declared.rate
        if rate is None:
            continue
        for run in runs:
            if rate not in {member.number for member in run}:
                run.append(PlacedLevel(result, None))
                break
