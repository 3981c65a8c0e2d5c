"""Interpretation of one result's files: which cell and levels ran, what its name said, and what does not agree.

The cell is that of what ran: its model and the size of its CPU tier come from arguments and report if these have them.
The arm is that of the name, because arguments alone do not identify it; arms configured alike are found later.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kveval.campaign.catalogue import Catalogue, Model, Scenario
from kveval.campaign.cell import Cell
from kveval.campaign.imports import Import
from kveval.campaign.result_names import (
    Declared,
    NamedHardware,
    NamePattern,
    NameProblem,
    parse_fields,
    parse_folder,
    parse_hardware,
)
from kveval.host.hashing import content_hash
from kveval.importing.index import IndexedReport, LevelFacts
from kveval.importing.settings import (
    ServedSettings,
    Tier,
    connectors,
    effective_tier,
    ignored_sizes,
    parse_settings,
    ranks,
)
from kveval.importing.trees import ResultFiles

IMPORTED, DAMAGED, NO_REPORT = "imported", "damaged", "no report"
UNKNOWN, NOT_SELECTED, AMBIGUOUS, COPY = "unknown", "not selected", "ambiguous", "copy"
LEFT_OUT = "left out"
# A size that was rounded to whole gigabytes is still the same budget.
_SAME_BUDGET = 0.01


@dataclass(frozen=True)
class FoundLevel:
    """One benchmark of a result as a level; `benchmark` is its number in the report."""

    level: int
    benchmark: int
    facts: LevelFacts


@dataclass(frozen=True)
class Remark:
    """A remark about a result; `code`: a fixed name for the kind of remark, `values`: those that it names.

    Of two values that do not agree, the declared one comes first.
    """

    text: str
    code: str
    values: tuple[object, ...] = ()


@dataclass(frozen=True)
class Result:
    """One result of the tree `tree`, interpreted; without a `cell` it is only listed, with its reason.

    `number`: that of the import it is found by; `code`: a fixed name for the kind of reason, if the status alone does
    not identify it; `runs`: those that its levels went into.
    """

    number: int
    tree: str
    files: ResultFiles
    facts: IndexedReport
    status: str
    reason: str = ""
    code: str = ""
    remarks: tuple[Remark, ...] = ()
    declared: Declared | None = None
    cell: Cell | None = None
    hardware: NamedHardware | None = None
    settings: ServedSettings = field(default_factory=ServedSettings)
    tier: Tier | None = None
    declared_blocks: int | None = None
    ranks: int = 1
    levels: tuple[FoundLevel, ...] = ()
    runs: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[int, str]:
        """The import that it is of, and its place: a tree may be imported several times."""
        return self.number, self.files.place

    @property
    def configuration(self) -> str | None:
        """Hash of everything that makes two servers alike, the load left out; None where it is not known."""
        if self.settings.args is None or self.declared is None:
            return None
        defining = {
            **self.settings.defining,
            "hardware": self.declared.hardware,
            "software": self.declared.software,
        }
        return content_hash(defining, spaced=True)


class _Refused(Exception):
    """This result cannot be imported: status, reason, and the reason's code."""

    def __init__(self, status: str, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.code = code


def interpret(
    number: int,
    files: ResultFiles,
    facts: IndexedReport,
    import_: Import,
    catalogue: Catalogue,
) -> Result:
    """Interpret one result of an import. Never raises for its content."""
    settings = parse_settings(facts.settings or "")
    result = Result(number, import_.path, files, facts, IMPORTED, settings=settings)
    try:
        declared = _declared(files, import_, catalogue)
        result = replace(result, declared=declared)
        for key in ("hardware", "software", "replicas"):
            expected, named = getattr(import_, key), getattr(declared, key)
            if expected is not None and named is not None and expected != named:
                raise _Refused(
                    NOT_SELECTED,
                    f"{key} {named} is not imported here ({key}: {expected} is)",
                    key,
                )
        if hardware := declared.hardware or import_.hardware:
            also = (import_.hardware,) if import_.hardware else ()
            result = replace(result, hardware=parse_hardware(hardware, also=also))
        name, scenario = _scenario(declared, import_, catalogue)
        model, remarks = _model(facts, declared, settings, import_, catalogue)
        if facts.error is not None:
            there = files.reports and facts.code != "lfs_pointer"
            raise _Refused(DAMAGED if there else NO_REPORT, facts.error, facts.code)
        levels = _levels(facts.levels)
        if all(level.facts.error for level in levels):
            raise _Refused(DAMAGED, str(levels[0].facts.error), "no_request")
        entry = catalogue.models[model]
        count = ranks(
            settings, entry, import_.tensor_parallel_size, _gpus_of_server(result)
        )
        declared_blocks = (
            declared.cpu_blocks
            if declared.cpu_blocks is not None
            else import_.cpu_blocks.get(name)
        )
        tier = effective_tier(settings, entry, count)
        blocks, more = _blocks(settings, tier, declared_blocks, scenario, name)
    except _Refused as refusal:
        return replace(
            result, status=refusal.status, reason=str(refusal), code=refusal.code
        )
    except NameProblem as problem:
        return replace(result, status=UNKNOWN, reason=str(problem), code=problem.code)
    differences = (
        *remarks,
        *more,
        *_differences(files.name, declared, settings, levels),
        *_utilization(settings, scenario, entry, model),
        *(Remark(text, "ignored_size") for text in ignored_sizes(settings)),
        *(Remark(text, "settings") for text in settings.problems),
        *(Remark(text, "report") for text in facts.notes),
    )
    return replace(
        result,
        cell=Cell(model, name, blocks),
        remarks=tuple(dict.fromkeys(differences)),
        tier=tier,
        declared_blocks=declared_blocks,
        ranks=count,
        levels=levels,
    )


def _gpus_of_server(result: Result) -> int | None:
    """Return the GPUs of one of a result's servers by its names; None if they do not say it."""
    if result.hardware is None or result.declared is None:
        return None
    return (
        result.hardware.nodes * result.hardware.gpus // (result.declared.replicas or 1)
        or None
    )


def import_pattern(import_: Import, catalogue: Catalogue) -> NamePattern | None:
    """Return the import's pattern, None without one. Raises NameProblem."""
    return (
        None
        if import_.pattern is None
        else NamePattern(import_.pattern, *_known(import_, catalogue))
    )


def _known(import_: Import, catalogue: Catalogue) -> tuple[set[str], set[str]]:
    """Return what names may call models and arms: the catalogue's names, and those that the import translates."""
    arms = {
        name.removesuffix("-mempress")
        for name in (*catalogue.scenarios, *import_.scenarios)
    }
    return {*catalogue.models, *import_.models}, arms


def _declared(files: ResultFiles, import_: Import, catalogue: Catalogue) -> Declared:
    if files.form == "folder":
        return parse_folder(files.name)
    if files.form == "benchmark":
        return parse_fields(files.name, *_known(import_, catalogue))
    pattern = import_pattern(import_, catalogue)
    assert pattern is not None, "results of a pattern are found by it"
    return pattern.declared(files.name)


def _scenario(
    declared: Declared, import_: Import, catalogue: Catalogue
) -> tuple[str, Scenario]:
    pressure = "-mempress" if declared.mempress else ""
    arm = f"{declared.arm}{pressure}"
    name = (
        import_.scenarios.get(arm)
        or f"{import_.scenarios.get(declared.arm, declared.arm)}{pressure}"
    )
    if name not in catalogue.scenarios:
        message = f"unknown arm {arm!r}: not in scenarios.yaml; say which one it is, as in `scenarios: {{{arm}: no-offload}}`"
        raise NameProblem(message, code="unknown_arm")
    return name, catalogue.scenarios[name]


def _model(
    facts: IndexedReport,
    declared: Declared,
    settings: ServedSettings,
    import_: Import,
    catalogue: Catalogue,
) -> tuple[str, tuple[Remark, ...]]:
    """Return the model that ran, and a remark if the name says another.

    Models are compared by the last part of their ids: a server that was given a folder reports that. The import's
    `models` translate what arguments and report name, too.
    """
    named = (
        None
        if declared.model is None
        else import_.models.get(declared.model, declared.model)
    )
    if named is not None and named not in catalogue.models:
        message = f"unknown model {declared.model!r}: not in models.yaml; say which it is, as in `models: {{NAME: MODEL}}`"
        raise NameProblem(message, code="unknown_model")
    names_that_ran = [
        settings.values.get("Model"),
        *(level.model for level in facts.levels),
    ]
    ran = sorted(
        {
            _tail(_translated(name, import_, catalogue))
            for name in names_that_ran
            if name
        }
    )
    if named is not None and ran in ([], [_tail(catalogue.models[named].hf_id)]):
        return named, ()
    if len(ran) != 1:
        reason = (
            f"arguments and report name several models: {', '.join(ran)}"
            if ran
            else "nothing says which model ran"
        )
        raise _Refused(UNKNOWN, reason, "several_models" if ran else "no_model")
    names = [
        name for name, model in catalogue.models.items() if _tail(model.hf_id) == ran[0]
    ]
    if len(names) != 1:
        what = f"is {' and '.join(names)} in models.yaml"
        if not names:
            what = f"is not in models.yaml: add it there, or say `models: {{{ran[0]}: NAME}}` in the import"
        raise _Refused(
            UNKNOWN, f"the model that ran, {ran[0]}, {what}", "unlisted_model"
        )
    if named is None:
        return names[0], ()
    return names[0], (
        Remark(
            f"the name says {declared.model}, {ran[0]} ran",
            "other_model",
            (declared.model, ran[0]),
        ),
    )


def _translated(name: str, import_: Import, catalogue: Catalogue) -> str:
    """Return the id of a model by the catalogue where the import translates its name, else the name."""
    meant = import_.models.get(name) or import_.models.get(_tail(name))
    return catalogue.models[meant].hf_id if meant in catalogue.models else name


def _tail(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2]


def _levels(facts: list[LevelFacts]) -> tuple[FoundLevel, ...]:
    """Number the benchmarks: by streams where all keep a number in flight, by requests a minute where all have a rate.

    Those of a sweep, which has both, are numbered in the order of their load. A report may repeat a number of streams;
    such levels go to different runs.
    """
    numbers = [level.streams for level in facts]
    if None in numbers:
        numbers = [round(60 * (level.rate_req_s or 0.0)) for level in facts]
        if not all(numbers) or len(set(numbers)) < len(numbers):
            by_load = sorted(range(len(facts)), key=lambda number: _load(facts[number]))
            return tuple(
                FoundLevel(rank, number, facts[number])
                for rank, number in enumerate(by_load, start=1)
            )
    return tuple(
        FoundLevel(level or 0, number, facts[number])
        for number, level in enumerate(numbers)
    )


def _load(level: LevelFacts) -> tuple[int, float]:
    """Order strategies: fixed numbers in flight, then rates, then everything at once."""
    if level.streams is not None:
        return 0, float(level.streams)
    return (1, level.rate_req_s) if level.rate_req_s is not None else (2, 0.0)


def _blocks(
    settings: ServedSettings,
    tier: Tier | None,
    declared: int | None,
    scenario: Scenario,
    name: str,
) -> tuple[int, tuple[Remark, ...]]:
    """Return the size of the CPU tier that ran, and remarks on it."""
    if tier is not None:
        return _sized(tier, declared, scenario)
    if settings.args is not None and not connectors(settings):
        without = Remark(
            "no KV connector among the arguments: it ran without a CPU tier",
            "no_connector",
        )
        return 0, (without,) if scenario.cpu_tier else ()
    if not scenario.cpu_tier:
        return 0, ()
    if declared is not None:
        what, code = "its arguments are not known", "arguments_unknown"
        if settings.args is not None:
            what, code = "the arguments do not size it", "arguments_size_none"
        return declared, (
            Remark(f"{declared} cpu_blocks as declared; {what}", code, (declared,)),
        )
    reason = (
        f"the size of its CPU tier is not known: give it as `cpu_blocks: {{{name}: N}}`"
    )
    raise _Refused(UNKNOWN, reason, "tier_unknown")


def _sized(
    tier: Tier, declared: int | None, scenario: Scenario
) -> tuple[int, tuple[Remark, ...]]:
    if tier.before_others and not scenario.cpu_tier:
        text = f"{tier.cpu_blocks} blocks in host memory ({tier.said_by}) are a buffer before its files"
        return 0, (Remark(text, "buffer", (tier.cpu_blocks,)),)
    if (
        declared is not None
        and abs(tier.cpu_blocks - declared) > _SAME_BUDGET * declared
    ):
        text = f"{declared} cpu_blocks declared, {tier.cpu_blocks} effective ({tier.said_by})"
        return tier.cpu_blocks, (
            Remark(text, "other_size", (declared, tier.cpu_blocks)),
        )
    return tier.cpu_blocks, ()


def _differences(
    name: str,
    declared: Declared,
    settings: ServedSettings,
    levels: tuple[FoundLevel, ...],
) -> Iterator[Remark]:
    """Say where name, arguments and report do not agree."""
    run_id, values = settings.values.get("Run ID"), settings.values
    if run_id is not None and run_id != name:
        yield Remark(f"its Run ID is {run_id}", "other_run_id", (run_id,))
    streams = {level.level for level in levels if level.facts.streams is not None}
    for what, rate, code in (
        ("name says", declared.rate, "streams_of_name"),
        (
            "arguments say",
            settings.number("Rate (Concurrency)"),
            "streams_of_arguments",
        ),
    ):
        if rate is not None and streams and streams != {rate}:
            text = (
                f"the {what} {rate} streams, {', '.join(map(str, sorted(streams)))} ran"
            )
            yield Remark(text, code, (rate, *sorted(streams)))
    replicas = settings.number("Replicas")
    if replicas is not None and declared.replicas not in (None, replicas):
        text = f"the name says {declared.replicas} replicas, the arguments {replicas}"
        yield Remark(text, "other_replicas", (declared.replicas, replicas))
    if "Parameters" in values and not values["Parameters"].startswith(declared.arm):
        text = f"the name says arm {declared.arm}, the arguments {values['Parameters']}"
        yield Remark(text, "other_arm", (declared.arm, values["Parameters"]))
    for data in (level.facts.data for level in levels if level.facts.data):
        load = {
            "Prefix Tokens": data.prefix_tokens,
            "Prefix Count": data.prefix_count,
            "Turns": data.turns,
        }
        for key, ran in load.items():
            declared_value = settings.number(key)
            # A report of a version without turns has none in its data; whether they were sent is a check of its own.
            if (
                declared_value is not None
                and ran != declared_value
                and not (key == "Turns" and ran == 1)
            ):
                yield Remark(
                    f"{key} {declared_value} was asked for, the report has {ran}",
                    "other_load",
                    (key, declared_value, ran),
                )


def _utilization(
    settings: ServedSettings, scenario: Scenario, model: Model, name: str
) -> Iterator[Remark]:
    argument = settings.argument("--gpu-memory-utilization") or settings.values.get(
        "GPU Memory Utilization"
    )
    expected = scenario.gpu_memory_utilization.get(name, model.gpu_memory_utilization)
    try:
        ran = float(argument) if argument else expected
    except ValueError:
        yield Remark(
            f"GPU Memory Utilization {argument!r} is not a number", "no_utilization"
        )
        return
    if abs(ran - expected) > 1e-9:
        text = f"gpu_memory_utilization {ran:g} ran, the catalogue has {expected:g} for this scenario"
        yield Remark(text, "other_utilization", (expected, ran))


def settings_that_ran(result: Result) -> Mapping[str, Any]:
    """Return what ran, as run.json and the table say it."""
    return {
        "cpu_blocks": result.cell.cpu_blocks if result.cell else None,
        "tier_bytes": result.tier.size_bytes if result.tier else None,
        "said_by": result.tier.said_by if result.tier else None,
        "connectors": list(connectors(result.settings)),
        "gpu_memory_utilization": result.settings.values.get("GPU Memory Utilization"),
        "tensor_parallel_size": result.ranks,
        "configuration": result.configuration,
    }
