"""Interpretation of one result's files: which cell and levels ran, what its name said, and what does not agree.

The cell is that of what ran: its model and the size of its CPU tier come from arguments and report if these have them.
The arm is that of the name, because arguments alone do not identify it; arms configured alike are found later. A name that
has none of the documented forms says nothing. What cannot be told stays None, with what is needed in words.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kveval.campaign.catalogue import Catalogue, Model, Scenario
from kveval.host.findings import Remark
from kveval.load.reports import LoadReport, ReportFileError
from kveval.load.reports.reading import read_report
from kveval.plugins.imports import october_2025
from kveval.plugins.imports.facts import (
    LevelFacts,
    ReportSummary,
    ServerFacts,
    read_server_facts,
)
from kveval.plugins.imports.forms import (
    DATED,
    FOLDER,
    OCTOBER,
    OTHER,
    Declared,
    ResultFiles,
    parse_fields,
    parse_folder,
    parse_hardware,
    parse_october,
)
from kveval.plugins.imports.october_2025 import PublishedRow
from kveval.plugins.imports.remarks import remark
from kveval.plugins.imports.settings import (
    ServedSettings,
    Tier,
    configuration,
    connectors,
    effective_tier,
    ignored_sizes,
    parse_settings,
    ranks,
)

# A size that was rounded to whole gigabytes is still the same budget.
_SAME_BUDGET = 0.01


@dataclass(frozen=True)
class FoundLevel:
    """One benchmark of a result as a level; `benchmark` is its number in the report."""

    level: int
    benchmark: int
    facts: LevelFacts


@dataclass(frozen=True)
class Result:
    """One result of a tree, interpreted. Of `model`, `scenario` and `cpu_blocks` those are None that nothing tells.

    `root`: its tree; `report`: relative to it; `problem`: why the report gives nothing, it then has no levels;
    `published`: its row in the publication whose form its name has.
    """

    root: Path
    files: ResultFiles
    declared: Declared
    report: str
    guidellm: str = ""
    server: ServerFacts = field(default_factory=ServerFacts)
    settings: ServedSettings = field(default_factory=ServedSettings)
    problem: str = ""
    model: str | None = None
    scenario: str | None = None
    cpu_blocks: int | None = None
    tensor_parallel_size: int | None = None
    levels: tuple[FoundLevel, ...] = ()
    remarks: tuple[Remark, ...] = ()
    published: PublishedRow | None = None

    @property
    def cell(self) -> tuple[str | None, str | None, int | None]:
        """The cell as far as it is known."""
        return self.model, self.scenario, self.cpu_blocks

    @property
    def known(self) -> bool:
        """Whether all of the cell is known."""
        return None not in self.cell

    @property
    def kind(self) -> tuple[str | None, str | None, int | None]:
        """Hardware, software and replicas: results that differ in them do not share a cell."""
        return self.declared.hardware, self.declared.software, self.declared.replicas

    @property
    def vllm(self) -> str | None:
        """The release of vLLM by the server's log, else by the publication that the result is of."""
        october = self.files.form == OCTOBER
        return self.server.vllm or (october_2025.VLLM if october else None)

    @property
    def configuration(self) -> str | None:
        """Hash of everything that makes two servers alike, the load left out; None where it is not known."""
        return configuration(
            self.settings, self.declared.hardware, self.declared.software
        )


class NoReport(Exception):
    """A JSON file is no report of a load generator; the message says why."""


def interpret(root: Path, files: ResultFiles, catalogue: Catalogue) -> Result:
    """Read and interpret one result. Raises NoReport for a file that is none; nothing for what a result lacks."""
    name, report, problem, others = _report(root, files)
    server = read_server_facts([root / path for path in files.server_files])
    settings = parse_settings(server.settings)
    declared = _declared(files, catalogue)
    result = Result(
        root,
        files,
        declared or Declared(),
        name,
        server=server,
        settings=settings,
        problem=problem,
        remarks=()
        if declared
        else (
            remark(
                "no_form",
                "its name has no documented form, so nothing is taken from it",
            ),
        ),
    )
    if report is None:
        return _placed(result, catalogue)
    facts = ReportSummary.from_report(report)
    levels = _levels(facts.levels)
    errors = [level.facts.error for level in levels]
    if all(errors):
        return _placed(replace(result, problem=str(errors[0])), catalogue)
    if files.form == OCTOBER:
        result = replace(result, published=october_2025.published_row(report))
    result = replace(result, guidellm=facts.guidellm, levels=levels)
    result = _placed(result, catalogue)
    differences = (
        *_differences(result),
        *_utilization(result, catalogue),
        *ignored_sizes(settings),
        *settings.unreadable,
        *server.remarks,
        *facts.remarks,
        *others,
    )
    remarks = tuple(dict.fromkeys((*result.remarks, *differences)))
    return replace(result, remarks=remarks)


def _report(
    root: Path, files: ResultFiles
) -> tuple[str, LoadReport | None, str, Sequence[Remark]]:
    """Return the report that is read, and it; or None and why; and remarks on the others. Raises NoReport."""
    if not files.reports:
        problem = "there is no report: GuideLLM writes it at its end"
        return files.place, None, problem, ()
    errors: list[str] = []
    for number, path in enumerate(files.reports):
        try:
            report = read_report(root / path, name=path)
        except ReportFileError as error:
            if files.form in (OCTOBER, OTHER):
                raise NoReport(str(error)) from error
            errors.append(str(error))
            continue
        remarks = [
            remark("report_unusable", "{error}", error=error) for error in errors
        ]
        for other in files.reports[number + 1 :]:
            remarks.append(
                remark(
                    "report_left_out",
                    "{report} is left out: {used} was read",
                    report=other,
                    used=path,
                )
            )
        return path, report, "", remarks
    return files.reports[0], None, "; ".join(errors), ()


def _declared(files: ResultFiles, catalogue: Catalogue) -> Declared | None:
    """Return what the name of a result declares; None where it does not have the form that it should have."""
    if files.form == FOLDER:
        return parse_folder(files.name)
    if files.form == DATED:
        arms = {name.removesuffix("-mempress") for name in catalogue.scenarios}
        return parse_fields(files.name, catalogue.models, arms)
    return parse_october(files.name)


def _placed(result: Result, catalogue: Catalogue) -> Result:
    """Return a result with its cell as far as it can be told, and remarks on it."""
    scenario, remarks = _scenario(result, catalogue)
    model, more = _model(result, catalogue)
    result = replace(result, scenario=scenario, model=model)
    result = replace(result, remarks=(*result.remarks, *remarks, *more))
    declared = result.declared
    if model is None or scenario is None:
        blocks = declared.cpu_blocks
        if scenario is not None and not connectors(result.settings):
            # Without a tier its size does not depend on the model.
            blocks = blocks if catalogue.scenarios[scenario].cpu_tier else 0
        return replace(result, cpu_blocks=blocks)
    entry = catalogue.models[model]
    count = ranks(result.settings, entry, _gpus_of_server(declared))
    tier = effective_tier(result.settings, entry, count)
    blocks, more = _blocks(result.settings, tier, declared, catalogue, scenario)
    return replace(
        result,
        cpu_blocks=blocks,
        tensor_parallel_size=count,
        remarks=(*result.remarks, *more),
    )


def _scenario(
    result: Result, catalogue: Catalogue
) -> tuple[str | None, tuple[Remark, ...]]:
    arm = result.declared.arm_under_pressure
    if arm is None:
        return None, ()
    if result.files.form == OCTOBER:
        return october_2025.SCENARIOS[arm], ()
    if arm in catalogue.scenarios:
        return arm, ()
    return None, (
        remark("unknown_arm", "the arm {arm!r} is not in scenarios.yaml", arm=arm),
    )


def _model(
    result: Result, catalogue: Catalogue
) -> tuple[str | None, tuple[Remark, ...]]:
    """Return the model that ran, and a remark if the name says another.

    Models are compared by the last part of their ids: a server that was given a folder reports that.
    """
    named = result.declared.model
    names_that_ran = [
        result.settings.values.get("Model"),
        *(level.facts.model for level in result.levels),
    ]
    ran = sorted({_tail(name) for name in names_that_ran if name})
    if named in catalogue.models and ran in (
        [],
        [_tail(catalogue.models[named].hf_id)],
    ):
        return named, ()
    if not ran:
        unknown = remark("model_untold", "nothing says which model ran")
        if named is not None:
            unknown = remark(
                "unknown_model",
                "the model {model!r} is not in models.yaml",
                model=named,
            )
        return None, (unknown,)
    if len(ran) > 1:
        return None, (
            remark(
                "several_models",
                "arguments and report name several models: {models}",
                models=ran,
            ),
        )
    names = [
        name for name, model in catalogue.models.items() if _tail(model.hf_id) == ran[0]
    ]
    if len(names) != 1:
        return None, (
            remark(
                "unlisted_model",
                "the model that ran, {model}, is {entries: and }",
                model=ran[0],
                entries=names or ["not in models.yaml"],
            ),
        )
    if named is None:
        return names[0], ()
    return names[0], (
        remark(
            "other_model",
            "the name says {declared}, {effective} ran",
            declared=named,
            effective=ran[0],
        ),
    )


def _tail(model: str) -> str:
    return model.rstrip("/").rpartition("/")[2]


def _gpus_of_server(declared: Declared) -> int | None:
    """Return the GPUs of one of a result's servers by its names; None if they do not say it."""
    hardware = parse_hardware(declared.hardware or "")
    if hardware is None:
        return None
    return hardware.nodes * hardware.gpus // (declared.replicas or 1) or None


def _levels(facts: Sequence[LevelFacts]) -> tuple[FoundLevel, ...]:
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
    declared: Declared,
    catalogue: Catalogue,
    scenario: str,
) -> tuple[int | None, tuple[Remark, ...]]:
    """Return the size of the CPU tier that ran, and remarks on it; None where nothing says it."""
    has_tier = catalogue.scenarios[scenario].cpu_tier
    if tier is not None:
        return _sized(tier, declared.cpu_blocks, has_tier=has_tier)
    if settings.args is not None and not connectors(settings):
        return 0, (
            remark(
                "no_connector",
                "no KV connector among the arguments: it ran without a CPU tier",
            ),
        ) if has_tier else ()
    if not has_tier:
        return 0, ()
    if declared.cpu_blocks is None:
        return None, (remark("tier_unknown", "nothing says the size of its CPU tier"),)
    code, why = "arguments_size_none", "the arguments do not size it"
    if settings.args is None:
        code, why = "arguments_unknown", "its arguments are not known"
    words = f"{{cpu_blocks}} cpu_blocks as declared; {why}"
    return declared.cpu_blocks, (remark(code, words, cpu_blocks=declared.cpu_blocks),)


def _sized(
    tier: Tier, declared: int | None, *, has_tier: bool
) -> tuple[int, tuple[Remark, ...]]:
    if tier.before_others and not has_tier:
        buffer = remark(
            "buffer",
            "{cpu_blocks} blocks in host memory ({setting}) are a buffer before its files",
            cpu_blocks=tier.cpu_blocks,
            setting=tier.said_by,
        )
        return 0, (buffer,)
    if (
        declared is not None
        and abs(tier.cpu_blocks - declared) > _SAME_BUDGET * declared
    ):
        sizes = {"declared": declared, "effective": tier.cpu_blocks}
        return tier.cpu_blocks, (
            remark(
                "other_size",
                "{declared} cpu_blocks declared, {effective} effective ({setting})",
                **sizes,
                setting=tier.said_by,
            ),
        )
    return tier.cpu_blocks, ()


def _differences(result: Result) -> Iterator[Remark]:
    """Yield a remark where name, arguments and report do not agree."""
    declared, settings = result.declared, result.settings
    values: Mapping[str, str] = settings.values
    run_id = values.get("Run ID")
    if run_id is not None and run_id != result.files.name:
        yield remark("other_run_id", "its Run ID is {run_id}", run_id=run_id)
    yield from _other_streams(result)
    replicas = settings.number("Replicas")
    if replicas is not None and declared.replicas not in (None, replicas):
        yield remark(
            "other_replicas",
            "the name says {declared} replicas, the arguments {effective}",
            declared=declared.replicas,
            effective=replicas,
        )
    arm = declared.arm
    if arm and "Parameters" in values and not values["Parameters"].startswith(arm):
        yield remark(
            "other_arm",
            "the name says arm {declared}, the arguments {effective}",
            declared=arm,
            effective=values["Parameters"],
        )
    for data in (level.facts.data for level in result.levels if level.facts.data):
        load = {
            "Prefix Tokens": data.prefix_tokens,
            "Prefix Count": data.prefix_count,
            "Turns": data.turns,
        }
        for key, ran in load.items():
            requested = settings.number(key)
            # A report of a version without turns has none in its data; whether they were sent is a check of its own.
            if key == "Turns" and ran == 1:
                continue
            if requested is not None and ran != requested:
                yield remark(
                    "other_load",
                    "{key} {declared} was asked for, the report has {effective}",
                    key=key,
                    declared=requested,
                    effective=ran,
                )


def _other_streams(result: Result) -> Iterator[Remark]:
    streams = sorted(
        {level.level for level in result.levels if level.facts.streams is not None}
    )
    said = "{declared} streams, {effective} ran"
    rates = {
        "streams_of_name": (result.declared.rate, f"the name says {said}"),
        "streams_of_arguments": (
            result.settings.number("Rate (Concurrency)"),
            f"the arguments say {said}",
        ),
    }
    for code, (rate, words) in rates.items():
        if rate is not None and streams and streams != [rate]:
            yield remark(code, words, declared=rate, effective=streams)


def _utilization(result: Result, catalogue: Catalogue) -> Iterator[Remark]:
    if result.model is None or result.scenario is None:
        return
    model: Model = catalogue.models[result.model]
    scenario: Scenario = catalogue.scenarios[result.scenario]
    argument = result.settings.argument(
        "--gpu-memory-utilization"
    ) or result.settings.values.get("GPU Memory Utilization")
    expected = scenario.gpu_memory_utilization.get(
        result.model, model.gpu_memory_utilization
    )
    try:
        ran = float(argument) if argument else expected
    except ValueError:
        yield remark(
            "no_utilization",
            "GPU Memory Utilization {argument!r} is not a number",
            argument=argument,
        )
        return
    if abs(ran - expected) > 1e-9:
        yield remark(
            "other_utilization",
            "gpu_memory_utilization {effective:g} ran, the catalogue has {declared:g} for this scenario",
            declared=expected,
            effective=ran,
        )
