"""Everything that a campaign imports: its results interpreted, made runs of cells, and what each needs."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from kveval.campaign.catalogue import Scenario
from kveval.campaign.cell import Cell
from kveval.campaign.imports import ImportCampaign
from kveval.configuration.config import Config
from kveval.host.hashing import content_hash
from kveval.importing.describe import describe_run
from kveval.importing.index import read_tree
from kveval.importing.interpret import (
    AMBIGUOUS,
    COPY,
    LEFT_OUT,
    Remark,
    Result,
    import_pattern,
    interpret,
)
from kveval.importing.runs import PlacedLevel, drafts_of, merge_partial_runs
from kveval.importing.trees import LeftOut, Tree, stamps_of
from kveval.stacks.arms import Platform
from kveval.stacks.registry import IMPORTED_SERVER

_ALIKE = "configured_alike"


class LevelPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """One level of a run to import. Paths are relative to the tree; `error` is why the level gives nothing.

    `beside` are benchmark-config.txt and the server's log.
    """

    level: int
    place: str
    start: float | None = None
    end: float | None = None
    report: str | None = None
    benchmark: int = 0
    strategy: str = ""
    archives: list[str] = []
    beside: list[str] = []
    error: str | None = None


class RunElsewhere(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that was measured elsewhere; `required`: the counters that its arm requires."""

    cell: Cell
    run: int
    vllm: str
    required: list[dict[str, Any]] = []


class RunPlan(RunElsewhere, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that importing one run needs. `stamp` changes with every file that the run refers to."""

    tree: str
    levels: list[LevelPlan]
    description: dict[str, Any]
    stamp: str
    shared_archives: list[str] = []
    copy: bool = False


AnyRun = TypeVar("AnyRun", bound=RunElsewhere)


@dataclass(frozen=True)
class RunsElsewhere(Generic[AnyRun]):
    """Runs that were measured elsewhere, in the order of their cells."""

    runs: Sequence[AnyRun]

    @property
    def cells(self) -> list[Cell]:
        """The cells that have at least one run, in the order of the runs."""
        return [runs[0].cell for runs in self._by_cell.values()]

    def runs_of(self, cell: str) -> list[AnyRun]:
        """Return the runs of a cell, given by its path, in their order."""
        return self._by_cell.get(cell, [])

    @cached_property
    def _by_cell(self) -> dict[str, list[AnyRun]]:
        # Asked for once for every job of a plan.
        runs_by_path: dict[str, list[AnyRun]] = {}
        for run in self.runs:
            runs_by_path.setdefault(run.cell.path, []).append(run)
        return runs_by_path


@dataclass(frozen=True)
class ImportPlan(RunsElsewhere[RunPlan]):
    """All runs to import, all results that were found, imported or not, and what holds none, by tree."""

    listed: Sequence[Result]
    others: Sequence[tuple[str, LeftOut]]

    @property
    def stamp(self) -> str:
        """Hash of everything that was found and what became of it."""
        listed = []
        for result in self.listed:
            remarks = tuple(remark.text for remark in result.remarks)
            listed.append((result.tree, result.files.place, result.runs, remarks))
        reasons = [(result.status, result.reason) for result in self.listed]
        others = [(tree, other.place, other.reason) for tree, other in self.others]
        return content_hash(
            [listed, reasons, [run.stamp for run in self.runs], others], spaced=True
        )


def plan_imports(config: Config, cache: Path) -> ImportPlan:
    """Find and interpret everything that a campaign imports; `cache` is the folder of the index.

    Raises OSError for an unreadable tree.
    """
    campaign, catalogue = config.campaign, config.catalogue
    if not isinstance(campaign, ImportCampaign):
        return ImportPlan((), (), ())
    trees: list[Tree] = []
    results: list[Result] = []
    for number, import_ in enumerate(campaign.imports):
        facts, tree = read_tree(
            Path(import_.path), import_pattern(import_, catalogue), cache
        )
        trees.append(tree)
        results += [
            interpret(number, files, facts[files.place], import_, catalogue)
            for files in tree.results
        ]
    results = _mark_equal_configurations(_without_mixtures(_without_copies(results)))
    shared_archives = [
        stamps_of(Path(import_.path), import_.archives) or tree.shared_archives
        for import_, tree in zip(campaign.imports, trees, strict=True)
    ]
    drafts, left_out = merge_partial_runs(drafts_of(results))
    runs: list[RunPlan] = []
    runs_of_cell: Counter[Cell] = Counter()
    placed: dict[tuple[int, str], set[int]] = {}
    for draft in drafts:
        cell, members, number = draft.cell, draft.members, draft.first.number
        import_, results_of_run = (
            campaign.imports[number],
            [member.result for member in members],
        )
        runs_of_cell[cell] += 1
        for result in results_of_run:
            placed.setdefault(result.key, set()).add(runs_of_cell[cell])
        vllm = next(
            (result.facts.vllm for result in results_of_run if result.facts.vllm), None
        ) or campaign.vllm(import_)
        remarks = dict.fromkeys(
            remark for result in results_of_run for remark in result.remarks
        )
        texts = [
            remark.text
            for remark in sorted(remarks, key=lambda remark: remark.code == _ALIKE)
        ]
        archives = [
            stamp for result in results_of_run for stamp in result.files.archives
        ]
        shared = [] if archives else shared_archives[number]
        stamps = [
            *archives,
            *shared,
            *(stamp for result in results_of_run for stamp in result.files.stamps),
        ]
        runs.append(
            RunPlan(
                tree=import_.path,
                cell=cell,
                run=runs_of_cell[cell],
                levels=[_level_plan(member) for member in members],
                description=describe_run(
                    members, catalogue.models[cell.model], vllm, texts
                ),
                stamp=content_hash(
                    [msgspec.to_builtins(stamp) for stamp in stamps], spaced=True
                ),
                vllm=vllm,
                required=_required(catalogue.scenarios[cell.scenario], vllm),
                shared_archives=[stamp.path for stamp in shared],
                copy=import_.copy_files,
            )
        )
    listed = []
    for result in results:
        if result.cell is not None and result.key in left_out:
            listed.append(
                _refused(result, LEFT_OUT, left_out[result.key], "no_common_level")
            )
        else:
            numbers = sorted(placed.get(result.key, ())) if result.cell else ()
            listed.append(replace(result, runs=tuple(numbers)))
    others = [
        (import_.path, other)
        for import_, tree in zip(campaign.imports, trees, strict=True)
        for other in tree.others
    ]
    return ImportPlan(runs, listed, others)


def _required(scenario: Scenario, vllm: str) -> list[dict[str, Any]]:
    """Return the counters that an imported arm requires."""
    # What was measured elsewhere ran on GPUs; LMCache's form follows from the release.
    platform = Platform(
        vllm, lmcache=None, on_cpu=False, engine="local", block_size=16, served_name=""
    )
    return [
        dict(entry) for entry in IMPORTED_SERVER.required_counters(scenario, platform)
    ]


def _refused(result: Result, status: str, reason: str, code: str = "") -> Result:
    return replace(result, status=status, reason=reason, code=code, cell=None)


def _without_copies(results: Sequence[Result]) -> list[Result]:
    """Return the results with copies of earlier ones refused, which would count as further runs."""
    seen: dict[tuple[Any, ...], str] = {}
    kept = []
    for result in results:
        times = tuple(
            (level.level, level.facts.start, level.facts.end) for level in result.levels
        )
        place = f"{result.tree}/{result.files.place}"
        if (
            result.cell is None
            or (first := seen.setdefault((result.cell, times), place)) == place
        ):
            kept.append(result)
        else:
            reason = f"the same measurement as {first}: equal levels at equal times"
            kept.append(_refused(result, COPY, reason))
    return kept


def _without_mixtures(results: Sequence[Result]) -> list[Result]:
    """Return the results with those refused that are of different machines or releases and share a cell."""
    kinds: dict[Cell, dict[str, set[str]]] = {}
    for result in results:
        if result.cell is not None:
            values = kinds.setdefault(
                result.cell, {"hardware": set(), "software": set(), "replicas": set()}
            )
            for key, names in values.items():
                names.add(str(getattr(result.declared, key)))
    mixed = {cell: _several(values) for cell, values in kinds.items()}
    return [
        _refused(
            result,
            AMBIGUOUS,
            f"the cell has results of {mixed[result.cell]}: choose one in the import",
        )
        if result.cell and mixed[result.cell]
        else result
        for result in results
    ]


def _several(values: Mapping[str, Collection[str]]) -> str:
    """Return the keys that have more than one value, each with its values."""
    return "; ".join(
        f"{key} {' and '.join(sorted(several))}"
        for key, several in values.items()
        if len(several) > 1
    )


def _mark_equal_configurations(results: Sequence[Result]) -> list[Result]:
    """Return the results with a remark on those whose configuration more than one cell ran with."""
    cells: dict[str | None, set[Cell]] = {}
    for result in results:
        if result.cell is not None and result.configuration is not None:
            cells.setdefault(result.configuration, set()).add(result.cell)
    remarked = []
    for result in results:
        others = sorted(
            cell.path for cell in cells.get(result.configuration, set()) - {result.cell}
        )
        text = f"configured like {' and '.join(others)}: a difference between them is noise (A/A)"
        alike = (
            (Remark(text, _ALIKE, tuple(others)),)
            if result.cell is not None and others
            else ()
        )
        remarked.append(replace(result, remarks=(*result.remarks, *alike)))
    return remarked


def _level_plan(member: PlacedLevel) -> LevelPlan:
    result, level = member.result, member.usable
    if level is None:
        reason = member.level.facts.error if member.level else result.reason
        return LevelPlan(level=member.number, place=result.files.place, error=reason)
    return LevelPlan(
        level=level.level,
        place=result.files.place,
        start=level.facts.start,
        end=level.facts.end,
        report=result.facts.report,
        benchmark=level.benchmark,
        strategy=level.facts.strategy,
        archives=[stamp.path for stamp in result.files.archives],
        beside=[stamp.path for stamp in result.files.beside],
    )
