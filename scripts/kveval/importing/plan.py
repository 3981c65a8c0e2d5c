"""Everything that a campaign imports: its results interpreted, made runs of cells, and what each needs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from kveval.config.catalogue import Catalogue
from kveval.config.imports import Import, ImportCampaign
from kveval.host.hashing import content_hash
from kveval.importing.describe import describe_run
from kveval.importing.index import read_tree
from kveval.importing.interpret import AMBIGUOUS, COPY, LEFT_OUT, Remark, Result, import_pattern, interpret
from kveval.importing.runs import PlacedLevel, drafts_of, joined
from kveval.importing.trees import LeftOut, Tree, stamps_of
from kveval.store.run_file import Cell

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


class RunPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that importing one run needs. `stamp` changes with every file that the run refers to."""

    tree: str
    model: str
    scenario: str
    cpu_blocks: int
    run: int
    levels: list[LevelPlan]
    description: dict[str, Any]
    stamp: str
    vllm: str
    required: list[dict[str, Any]] = []
    shared_archives: list[str] = []
    copy: bool = False

    @property
    def cell(self) -> Cell:
        """The cell of the run."""
        return Cell(self.model, self.scenario, self.cpu_blocks)

    @property
    def label(self) -> str:
        """The run in words."""
        return f"{self.cell.path} run i{self.run}"


@dataclass(frozen=True)
class Listed:
    """A result as the table of imports lists it: `runs` are the runs that its levels went into."""

    tree: str
    result: Result
    runs: tuple[int, ...] = ()
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class ImportPlan:
    """All runs to import, all results that were found, imported or not, and what holds none, by tree."""

    runs: Sequence[RunPlan]
    listed: Sequence[Listed]
    others: Sequence[tuple[str, LeftOut]]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that have at least one run, sorted by model, scenario and size."""
        return tuple(dict.fromkeys(run.cell for run in self.runs))

    def runs_of(self, cell: str) -> list[RunPlan]:
        """The runs of a cell, given by its path, in their order."""
        return self._by_cell.get(cell, [])

    @cached_property
    def _by_cell(self) -> dict[str, list[RunPlan]]:
        # Asked for once for every job of a plan.
        found: dict[str, list[RunPlan]] = {}
        for run in self.runs:
            found.setdefault(run.cell.path, []).append(run)
        return found

    @property
    def stamp(self) -> str:
        """Hash of everything that was found and what became of it."""
        listed = [
            (entry.tree, entry.result.source.found.place, entry.runs, tuple(remark.text for remark in entry.remarks))
            for entry in self.listed
        ]
        reasons = [(entry.result.status, entry.result.reason) for entry in self.listed]
        others = [(tree, other.place, other.reason) for tree, other in self.others]
        return content_hash([listed, reasons, [run.stamp for run in self.runs], others], spaced=True)


Required = Callable[[str, str], list[dict[str, Any]]]


def make_plan(
    campaign: ImportCampaign,
    catalogue: Catalogue,
    cache: Path,
    required: Required,
    *,
    progress: Callable[[str, int, int], None] = lambda tree, done, total: None,
) -> ImportPlan:
    """Find and interpret everything that the campaign imports.

    `cache` is the folder of the index; `required(scenario, vllm)` gives the counters that prove an arm active;
    `progress(tree, done, total)` is called for every result that has to be read. Raises OSError for an unreadable tree.
    """
    trees: list[tuple[Import, Tree, list[Result]]] = []
    for asked in campaign.imports:
        sources, tree = read_tree(
            Path(asked.path),
            import_pattern(asked, catalogue),
            cache,
            progress=lambda done, total, path=asked.path: progress(path, done, total),  # type: ignore[misc]
        )
        trees.append((asked, tree, [interpret(source, asked, catalogue) for source in sources]))
    seen: dict[tuple[Any, ...], str] = {}
    trees = [(asked, tree, _without_copies(asked.path, results, seen)) for asked, tree, results in trees]
    mixed = _mixtures(result for _, _, results in trees for result in results)
    trees = [(asked, tree, [_unmixed(result, mixed) for result in results]) for asked, tree, results in trees]
    alike = _alike(result for _, _, results in trees for result in results)
    shared_archives = {
        (asked.path, asked.archives): stamps_of(Path(asked.path), asked.archives) or tree.shared_archives
        for asked, tree, _ in trees
    }
    made = [drafts_of(number, results) for number, (_, _, results) in enumerate(trees)]
    drafts, left_out = joined(draft for found in made for draft in found)
    runs: list[RunPlan] = []
    taken: dict[Cell, int] = {}
    placed: dict[tuple[int, str], list[tuple[int, tuple[Remark, ...]]]] = {}
    for draft in drafts:
        (asked, _, _), members, cell = trees[draft.tree], draft.members, draft.cell
        number = taken[cell] = taken.get(cell, 0) + 1
        remarks = _remarks(cell, members, alike)
        for member in members:
            place = (draft.tree, member.result.source.found.place)
            placed.setdefault(place, []).append((number, remarks if member.result.cell else ()))
        found = next((m.result.source.facts.vllm for m in members if m.result.source.facts.vllm), None)
        vllm = found or campaign.vllm(asked)
        described = [(member.result, member.level) for member in members]
        said = [remark.text for remark in remarks]
        archives = [stamp for member in members for stamp in member.result.source.found.archives]
        shared = [] if archives else shared_archives[asked.path, asked.archives]
        stamps = [*archives, *shared, *(stamp for member in members for stamp in member.result.source.found.stamps)]
        runs.append(
            RunPlan(
                tree=asked.path,
                model=cell.model,
                scenario=cell.scenario,
                cpu_blocks=cell.cpu_blocks,
                run=number,
                levels=[_level_plan(member) for member in members],
                description=describe_run(described, catalogue.models[cell.model], vllm, said),
                stamp=content_hash([msgspec.to_builtins(stamp) for stamp in stamps], spaced=True),
                vllm=vllm,
                required=required(cell.scenario, vllm),
                shared_archives=[stamp.path for stamp in shared],
                copy=asked.copy_files,
            )
        )
    listed = [
        _listed(
            asked.path,
            _without_place(result, left_out.get((number, result.source.found.place))),
            placed.get((number, result.source.found.place), []),
        )
        for number, (asked, _, results) in enumerate(trees)
        for result in results
    ]
    return ImportPlan(runs, listed, [(asked.path, other) for asked, tree, _ in trees for other in tree.others])


def _without_place(result: Result, reason: str | None) -> Result:
    if reason is None or result.cell is None:
        return result
    return replace(result, status=LEFT_OUT, reason=reason, code="no_common_level", cell=None)


def _without_copies(tree: str, results: Sequence[Result], seen: dict[tuple[Any, ...], str]) -> list[Result]:
    """Return the results with copies of earlier ones marked, which would count as further runs; adds to `seen`."""
    kept = []
    for result in results:
        if result.cell is None:
            kept.append(result)
            continue
        times = tuple((level.level, level.facts.start, level.facts.end) for level in result.levels)
        place = f"{tree}/{result.source.found.place}"
        first = seen.setdefault((result.cell, times), place)
        if first == place:
            kept.append(result)
        else:
            reason = f"the same measurement as {first}: equal levels at equal times"
            kept.append(replace(result, status=COPY, reason=reason, cell=None))
    return kept


def _mixtures(results: Iterable[Result]) -> dict[Cell, str]:
    """Return the cells whose results are of different machines or releases, with what to choose from."""
    kinds: dict[Cell, set[tuple[str, str]]] = {}
    for result in results:
        if result.cell is not None and result.declared is not None:
            for key in ("hardware", "software", "replicas"):
                kinds.setdefault(result.cell, set()).add((key, str(getattr(result.declared, key))))
    found = {}
    for cell, pairs in kinds.items():
        several = {key: sorted(v for k, v in pairs if k == key) for key in ("hardware", "software", "replicas")}
        reasons = [f"{key} {' and '.join(values)}" for key, values in several.items() if len(values) > 1]
        if reasons:
            found[cell] = f"the cell has results of {'; '.join(reasons)}: choose one in the import"
    return found


def _unmixed(result: Result, mixed: Mapping[Cell, str]) -> Result:
    if result.cell is None or result.cell not in mixed:
        return result
    return replace(result, status=AMBIGUOUS, reason=mixed[result.cell], cell=None)


def _alike(results: Iterable[Result]) -> dict[str, set[Cell]]:
    """Return the configurations that more than one cell ran with."""
    cells: dict[str, set[Cell]] = {}
    for result in results:
        if result.cell is not None and result.configuration is not None:
            cells.setdefault(result.configuration, set()).add(result.cell)
    return {configuration: found for configuration, found in cells.items() if len(found) > 1}


def _level_plan(member: PlacedLevel) -> LevelPlan:
    result, level = member.result, member.level
    found = result.source.found
    if level is None or level.error is not None:
        reason = result.reason if level is None else level.error
        return LevelPlan(level=member.number, place=found.place, error=reason)
    return LevelPlan(
        level=level.level,
        place=found.place,
        start=level.facts.start,
        end=level.facts.end,
        report=result.source.facts.report,
        benchmark=level.benchmark,
        strategy=level.facts.strategy,
        archives=[stamp.path for stamp in found.archives],
        beside=[stamp.path for stamp in (*([found.config] if found.config else []), *found.logs)],
    )


def _remarks(cell: Cell, members: Sequence[PlacedLevel], alike: Mapping[str, set[Cell]]) -> tuple[Remark, ...]:
    """Return what there is to say about a run: what its results' names, arguments and reports do not agree on."""
    found = [remark for member in members for remark in member.result.remarks]
    for configuration in {member.result.configuration for member in members} & alike.keys():
        others = sorted(other.path for other in alike[str(configuration)] - {cell})
        said = f"configured like {' and '.join(others)}: a difference between them is noise (A/A)"
        found.append(Remark(said, _ALIKE, tuple(others)))
    return tuple(dict.fromkeys(found))


def _listed(tree: str, result: Result, runs: Sequence[tuple[int, tuple[Remark, ...]]]) -> Listed:
    remarks = [remark for _, found in runs for remark in found if remark.code == _ALIKE]
    numbers = tuple(sorted({number for number, _ in runs})) if result.cell else ()
    return Listed(tree, result, numbers, (*result.remarks, *dict.fromkeys(remarks)))
