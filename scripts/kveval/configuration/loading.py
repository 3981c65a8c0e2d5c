"""A campaign and the catalogues read and checked: all mistakes at once, each with file and key."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kveval.campaign.campaign_file import UNRESOLVABLE, Campaign
from kveval.campaign.catalogue import Catalogue, Model
from kveval.campaign.cell import Cell
from kveval.campaign.entries import (
    KINDS,
    OWN_KINDS,
    check_names,
    check_releases,
    check_scenarios,
    read_catalogues,
    validate_entries,
)
from kveval.campaign.import_sheet import ImportSheet, read_sheet, sheet_problems
from kveval.campaign.imports import (
    CompareCampaign,
    Compared,
    ImportCampaign,
    named_on,
    sheet_command,
)
from kveval.campaign.inheritance import CampaignSource, read_campaign
from kveval.campaign.problems import (
    MISTAKES,
    ConfigError,
    ConfigProblem,
    problems_of,
    unknown_name,
)
from kveval.campaign.release import Images
from kveval.configuration.config import Config
from kveval.host.values import Mistake
from kveval.stacks.keyvalue import STORES
from kveval.stacks.picker import Picker
from kveval.stacks.registry import SIDECARS


def load_config(campaign: Path | Mapping[str, Any], directory: Path) -> Config:
    """Read a campaign - a file, or the mapping Snakemake made of one - and the catalogues in `directory`.

    A file may extend another, see kveval.campaign.inheritance. Raises ConfigError with every mistake found: syntax,
    unknown or missing keys, wrong values, names that do not exist, and cells of the matrix that cannot be measured.
    """
    problems: list[ConfigProblem] = []
    if isinstance(campaign, Mapping):
        place, source = "campaign", CampaignSource(dict(campaign))
    else:
        place = campaign.as_posix()
        source, problems = read_campaign(campaign)
    try:
        return _complete(source, directory, place, problems)
    except ConfigError as error:
        raise ConfigError(
            source.located(problem, place) for problem in error.problems
        ) from None


def _complete(
    source: CampaignSource, directory: Path, place: str, problems: list[ConfigProblem]
) -> Config:
    """Check a campaign that was read, with `problems`, from `place`, against the catalogues."""
    raw = source.raw
    readable = not problems
    valid, known = _read_catalogues(directory, raw, place, problems)
    problems += check_names(raw, place, known)
    if not readable:
        raise ConfigError(problems)
    # Without its own entries, which may extend others and are validated with them.
    declared = {key: value for key, value in raw.items() if key not in OWN_KINDS}
    kind = _kind_of_campaign(raw)
    noted: list[tuple[str, Mistake]] = []
    try:
        parsed = kind.model_validate(declared, context={MISTAKES: noted})
    except ValidationError as error:
        problems += problems_of(error, kind, raw, place)
        raise ConfigError([*problems, *_noted_problems(noted, place)]) from None
    problems += _noted_problems(noted, place)
    own = {name: _entries_in(valid[name], raw.get(name)) for name in OWN_KINDS}
    config = Config(
        parsed.model_copy(update=own), Catalogue.model_construct(None, **valid)
    )
    if not {code for _, one in noted if (code := one.code) in UNRESOLVABLE}:
        problems += _matrix_problems(config, place)
    problems += _unlisted_problems(config, place)
    sheet = _sheet(config, place, problems)
    found = _compared(config.campaign, directory, place, problems)
    if problems:
        raise ConfigError(problems)
    if sheet is not None:
        return replace(config, sheet=sheet)
    if not found:
        return config
    return Config(
        _with_contrasts(config.campaign, found),
        _compared_catalogue(found, config.catalogue),
        found,
    )


def load_catalogue(directory: Path) -> Catalogue:
    """Read the catalogues in `directory`. Raises ConfigError with every mistake in them."""
    problems: list[ConfigProblem] = []
    valid, _ = _read_catalogues(directory, {}, "", problems)
    if problems:
        raise ConfigError(problems)
    return Catalogue.model_construct(None, **valid)


def _read_catalogues(
    directory: Path, raw: Mapping[str, Any], place: str, problems: list[ConfigProblem]
) -> tuple[dict[str, Any], dict[str, set[str]]]:
    """Return the valid entries of the catalogues and of a campaign, by kind, and all names that are known.

    `raw`: the campaign, known as `place`; appends the mistakes.
    """
    entries, unread = read_catalogues(directory, raw, place, problems)
    valid = {
        kind: validate_entries(kind, entries[kind], problems, directory)
        for kind in KINDS
    }
    known = {kind: set(entries[kind]) for kind in KINDS if kind not in unread}
    known |= {
        # The picker belongs to the route of the requests: no arm has one.
        "sidecars": SIDECARS.keys() - {Picker.name},
        "stores": set(STORES),
        "images": {*Images.model_fields, *SIDECARS},
    }
    check_scenarios(valid["scenarios"], entries["scenarios"], known, problems)
    check_releases(valid["releases"], entries["releases"], known, problems)
    return valid, known


def _sheet(
    config: Config, place: str, problems: list[ConfigProblem]
) -> ImportSheet | None:
    """Return the sheet of a campaign that imports, None for another or without one; append what is wrong with it."""
    if not isinstance(config.campaign, ImportCampaign):
        return None
    path = Path(config.campaign.sheet)
    if not path.is_file():
        what, code = "does not exist", "absent"
        command = sheet_command(sheet=path.as_posix())
        if path.is_dir():
            what, code = "is a folder, not a sheet", "no_file"
            command = sheet_command([path.as_posix()])
        message = f"{path} {what}; this writes it: {command}"
        problems.append(ConfigProblem(place, "import", message, code=code))
        return None
    sheet, mistakes = read_sheet(path)
    # What depends on other rows is only right when every row is known.
    problems += mistakes or sheet_problems(sheet, config.catalogue)
    return sheet


def _kind_of_campaign(raw: Mapping[str, Any]) -> type[Campaign]:
    if "import" in raw:
        return ImportCampaign
    return CompareCampaign if "compare" in raw else Campaign


def _entries_in(
    valid: Mapping[str, Any], declared: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The valid entries that a campaign declares itself."""
    return {name: entry for name, entry in valid.items() if name in (declared or {})}


def _noted_problems(
    noted: Iterable[tuple[str, Mistake]], place: str
) -> list[ConfigProblem]:
    return [
        ConfigProblem(place, key, str(mistake), code=mistake.code)
        for key, mistake in noted
    ]


def _matrix_problems(config: Config, place: str) -> list[ConfigProblem]:
    """Resolve every cell of the matrix, so that no mistake waits for hours of other measurements.

    Cells with unknown names or wrong entries are left out: those mistakes are reported elsewhere.
    """
    catalogue = config.catalogue
    if config.campaign.workload not in catalogue.workloads:
        return []
    problems = []
    for index, entry in enumerate(config.campaign.matrix):
        for cell, size_key in config.cells_of(entry):
            if (
                cell.model not in catalogue.models
                or cell.scenario not in catalogue.scenarios
            ):
                continue
            try:
                config.specification(cell)
                found: Iterable[ConfigProblem] = config.replicate_problems(cell)
            except ConfigError as error:
                found = error.problems
            keys = {
                "models": f"models[{entry.models.index(cell.model)}]",
                "scenarios": f"scenarios[{entry.scenarios.index(cell.scenario)}]",
                "cpu_blocks": size_key,
            }
            for problem in found:
                key = problem.key
                if key in keys:
                    key = f"matrix[{index}].{keys[key]}"
                problems.append(replace(problem, file=place, key=key))
    return problems


def _unlisted_problems(config: Config, place: str) -> Iterator[ConfigProblem]:
    """Report what bridges and contrasts name and the matrix does not have."""
    cells = config.unlisted_cells()
    if cells:
        paths = ", ".join(cell.path for cell in cells)
        message = f"bridges names {paths}, which the matrix does not list"
        yield ConfigProblem(place, "", message, code="bridge_unlisted")
    arms = config.unlisted_arms()
    if arms:
        message = f"comparison.contrasts names {', '.join(arms)}, which the matrix does not list"
        yield ConfigProblem(place, "", message, code="contrast_unlisted")


def _compared(
    campaign: Campaign, directory: Path, place: str, problems: list[ConfigProblem]
) -> list[tuple[Compared, Config]]:
    """Load the campaigns that `campaign` compares, if any, from `directory`/campaigns; append what is wrong."""
    found: list[tuple[Compared, Config]] = []
    compared = campaign.compare if isinstance(campaign, CompareCampaign) else ()
    folder = directory / "campaigns"
    for index, entry in enumerate(compared):
        key, path = f"compare[{index}].campaign", folder / f"{entry.campaign}.yaml"
        if not path.is_file():
            known = (other.stem for other in folder.glob("*.yaml"))
            problems.append(
                unknown_name(
                    place, key, entry.campaign, known, f"there is no {path.as_posix()}"
                )
            )
            continue
        try:
            config = load_config(path, directory)
        except ConfigError as error:
            problems += error.problems
            continue
        if not config.cells:
            message = f"{entry.campaign} measures nothing"
            problems.append(
                ConfigProblem(
                    place, key, message, "a campaign with a matrix", "no_matrix"
                )
            )
        found.append((entry, config))
    for label, count in Counter(entry.label for entry in compared).items():
        if count > 1:
            message = f"label {label} is given twice"
            problems.append(
                ConfigProblem(place, "compare", message, code="repeated_label")
            )
    seen: dict[str, tuple[str, Model]] = {}
    for entry, config in found:
        for name in dict.fromkeys(cell.model for cell in config.cells):
            model = config.catalogue.models[name]
            other, earlier = seen.setdefault(name, (entry.campaign, model))
            if earlier != model:
                message = f"model {name} differs between {entry.campaign} and {other}"
                problems.append(
                    ConfigProblem(place, "compare", message, code="other_model")
                )
    return found


def _compared_catalogue(
    found: Sequence[tuple[Compared, Config]], catalogue: Catalogue
) -> Catalogue:
    """Return the catalogue with the campaigns' models and their scenarios under the names they appear with.

    Every scenario is compared with the same scenario on the first label.
    """
    models = dict(catalogue.models)
    scenarios = dict(catalogue.scenarios)
    first = {
        named_on(cell.scenario, found[0][0].label): cell.scenario
        for cell in found[0][1].cells
    }
    for entry, config in found:
        for cell in config.cells:
            models[cell.model] = config.catalogue.models[cell.model]
            scenario, reference = (
                config.catalogue.scenarios[cell.scenario],
                named_on(cell.scenario, found[0][0].label),
            )
            scenarios[named_on(cell.scenario, entry.label)] = scenario.model_copy(
                update={
                    "title": f"{scenario.title}, {entry.label}",
                    "baseline": reference
                    if entry is not found[0][0] and reference in first
                    else None,
                }
            )
    return catalogue.model_copy(update={"models": models, "scenarios": scenarios})


def _with_contrasts(
    campaign: Campaign, found: Sequence[tuple[Compared, Config]]
) -> Campaign:
    """Return the campaign with every arm compared with its own campaign's baseline as well."""
    pairs: dict[tuple[str, str], None] = {}
    for entry, config in found:
        for cell in config.cells:
            base: Cell | None = config.baseline(cell)
            if base is not None and base in config.cells:
                pairs[
                    named_on(cell.scenario, entry.label),
                    named_on(base.scenario, entry.label),
                ] = None
    comparison = campaign.comparison.model_copy(update={"contrasts": tuple(pairs)})
    return campaign.model_copy(update={"comparison": comparison})
