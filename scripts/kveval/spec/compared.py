"""Compared campaigns: their models and scenarios as those of one campaign.

Every scenario is compared with the same scenario on the first label, and, as a declared contrast, with its own baseline
on its own label.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kveval.config.campaign import Campaign
from kveval.config.catalogue import Catalogue, Model
from kveval.config.imports import CompareCampaign, Compared, named_on
from kveval.config.problems import ConfigError, ConfigProblem, unknown_name
from kveval.store.run_file import Cell

if TYPE_CHECKING:
    from kveval.spec.config import Config


def compared_campaigns(
    campaign: Campaign, directory: Path, place: str, load: Callable[[Path, Path], "Config"]
) -> "tuple[list[tuple[Compared, Config]], list[ConfigProblem]]":
    """Load the campaigns that `campaign` compares, if any, from `directory`/campaigns, and say what is wrong."""
    if not isinstance(campaign, CompareCampaign):
        return [], []
    found: list[tuple[Compared, Config]] = []
    problems: list[ConfigProblem] = []
    folder = directory / "campaigns"
    for index, entry in enumerate(campaign.compare):
        key, path = f"compare[{index}].campaign", folder / f"{entry.campaign}.yaml"
        if not path.is_file():
            known = (other.stem for other in folder.glob("*.yaml"))
            problems.append(unknown_name(place, key, entry.campaign, known, f"there is no {path.as_posix()}"))
            continue
        try:
            config = load(path, directory)
        except ConfigError as error:
            problems += error.problems
            continue
        if not config.cells:
            said = f"{entry.campaign} measures nothing"
            problems.append(ConfigProblem(place, key, said, "a campaign with a matrix", "no_matrix"))
        found.append((entry, config))
    labels = [entry.label for entry in campaign.compare]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    problems += [
        ConfigProblem(place, "compare", f"label {label} is given twice", code="repeated_label") for label in repeated
    ]
    return found, problems + list(_model_problems(found, place))


def _model_problems(found: "Sequence[tuple[Compared, Config]]", place: str) -> Iterator[ConfigProblem]:
    """Report models that have one name but differ between campaigns."""
    seen: dict[str, tuple[str, Model]] = {}
    for entry, config in found:
        for name in dict.fromkeys(cell.model for cell in config.cells):
            model = config.catalogue.models[name]
            other, earlier = seen.setdefault(name, (entry.campaign, model))
            if earlier != model:
                said = f"model {name} differs between {entry.campaign} and {other}"
                yield ConfigProblem(place, "compare", said, code="other_model")


def compared_catalogue(found: "Sequence[tuple[Compared, Config]]", catalogue: Catalogue) -> Catalogue:
    """Return the catalogue with the campaigns' models and their scenarios under the names they appear with."""
    models = dict(catalogue.models)
    scenarios = dict(catalogue.scenarios)
    first = {named_on(cell.scenario, found[0][0].label): cell.scenario for cell in found[0][1].cells}
    for entry, config in found:
        for cell in config.cells:
            models[cell.model] = config.catalogue.models[cell.model]
            scenario, reference = config.catalogue.scenarios[cell.scenario], named_on(cell.scenario, found[0][0].label)
            scenarios[named_on(cell.scenario, entry.label)] = scenario.model_copy(
                update={
                    "title": f"{scenario.title}, {entry.label}",
                    "baseline": reference if entry is not found[0][0] and reference in first else None,
                }
            )
    return catalogue.model_copy(update={"models": models, "scenarios": scenarios})


def with_contrasts(campaign: Campaign, found: "Sequence[tuple[Compared, Config]]") -> Campaign:
    """Return the campaign with every arm compared with its own campaign's baseline as well."""
    pairs: dict[tuple[str, str], None] = {}
    for entry, config in found:
        for cell in config.cells:
            base: Cell | None = config.baseline(cell)
            if base is not None and base in config.cells:
                pairs[named_on(cell.scenario, entry.label), named_on(base.scenario, entry.label)] = None
    comparison = campaign.comparison.model_copy(update={"contrasts": tuple(pairs)})
    return campaign.model_copy(update={"comparison": comparison})
