"""Reads the catalogues' entries from files and the campaign, resolves `extends`, validates them and their names."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from kveval.campaign.catalogue import Gpu, KnownDefect, Model, Scenario
from kveval.campaign.inheritance import YamlEntry, read_yaml, resolve_extends
from kveval.campaign.metric import Metric
from kveval.campaign.problems import ConfigProblem, kind_of, problems_of, unknown_name
from kveval.campaign.release import Release
from kveval.campaign.types import NAME_PATTERN
from kveval.load.workload import Workload

KINDS: dict[str, type[BaseModel]] = {
    "models": Model,
    "scenarios": Scenario,
    "workloads": Workload,
    "metrics": Metric,
    "releases": Release,
    "known_defects": KnownDefect,
    "gpus": Gpu,
}
OWN_KINDS = ("models", "scenarios", "workloads")
"""The kinds of entries that a campaign may declare itself."""
EXTENDING_KINDS = ("models", "scenarios")

Entries = dict[str, YamlEntry]


def read_catalogues(
    directory: Path,
    campaign: Mapping[str, Any],
    place: str,
    problems: list[ConfigProblem],
) -> tuple[dict[str, Entries], set[str]]:
    """Return every catalogue's raw entries, with the campaign's own, and the kinds whose file could not be read."""
    catalogues: dict[str, Entries] = {}
    unread = set()
    for kind in KINDS:
        path = directory / f"{kind}.yaml"
        content, found = read_yaml(path)
        problems += found
        if found:
            unread.add(kind)
        catalogues[kind] = {
            name: YamlEntry(entry, path.as_posix(), name)
            for name, entry in content.items()
        }
        own = campaign.get(kind) if kind in OWN_KINDS else None
        if own is not None and not isinstance(own, Mapping):
            right = "names with their entries; leave it out for none"
            problems.append(
                ConfigProblem(place, kind, f"is a {kind_of(own)}", right, "no_mapping")
            )
            continue
        for name, entry in (own or {}).items():
            if name in catalogues[kind]:
                taken = f"{path.as_posix()} has an entry of this name"
                problems.append(
                    ConfigProblem(
                        place,
                        f"{kind}.{name}",
                        taken,
                        "another name, with extends",
                        "taken",
                    )
                )
            else:
                catalogues[kind][str(name)] = YamlEntry(entry, place, f"{kind}.{name}")
    return catalogues, unread


def validate_entries(
    kind: str, entries: Entries, problems: list[ConfigProblem], directory: Path = Path()
) -> dict[str, Any]:
    """Return the valid entries, typed and completed; append the mistakes in the others to `problems`.

    `directory`: the folder to which file names in entries are relative.
    """
    valid: dict[str, Any] = {}
    wrong: dict[str, list[ConfigProblem]] = {}
    for name, entry in entries.items():
        complete, found = (
            resolve_extends(name, entries)
            if kind in EXTENDING_KINDS
            else (entry.raw, [])
        )
        if not re.fullmatch(NAME_PATTERN, name):
            right = "letters, digits and . _ + -, a letter or digit first"
            found = [
                *found,
                ConfigProblem(
                    entry.file, entry.key, "cannot be a folder's name", right, "no_name"
                ),
            ]
        if not isinstance(entry.raw, Mapping):
            message = f"is a {kind_of(entry.raw)}"
            right = "a mapping of keys to values"
            found = [
                *found,
                ConfigProblem(entry.file, entry.key, message, right, "no_mapping"),
            ]
        elif complete is not None:
            try:
                valid[name] = KINDS[kind].model_validate(
                    complete, context={"folder": directory}
                )
            except ValidationError as error:
                found = [
                    *found,
                    *problems_of(error, KINDS[kind], complete, entry.file, entry.key),
                ]
        wrong[name] = found
    for name, found in wrong.items():
        problems += [
            problem
            for problem in found
            if not _is_inherited(entries[name], problem, entries, wrong)
        ]
    return valid


def _is_inherited(
    entry: YamlEntry,
    problem: ConfigProblem,
    entries: Entries,
    wrong: Mapping[str, list[ConfigProblem]],
) -> bool:
    """Whether the mistake is in the extended entry, and is reported there."""
    if (
        entry.parent is None
        or entry.parent not in entries
        or entries[entry.parent] is entry
    ):
        return False
    key = entries[entry.parent].key + problem.key.removeprefix(entry.key)
    return any(
        (key, problem.message) == (other.key, other.message)
        for other in wrong[entry.parent]
    )


def check_scenarios(
    scenarios: dict[str, Scenario],
    entries: Entries,
    known: Mapping[str, set[str]],
    problems: list[ConfigProblem],
) -> None:
    """Check the names that scenarios use: baselines, models, and the programs beside the server.

    `known` lacks the kinds that could not be read; it has `sidecars`, and those that are `stores`. A scenario with an
    unknown store is taken out of `scenarios`: nothing more can be said of it.
    """
    for name, scenario in [*scenarios.items()]:
        file, base = entries[name].file, scenario.baseline
        if base is not None and "scenarios" in known:
            key = f"{entries[name].key}.baseline"
            if base not in known["scenarios"]:
                problems.append(unknown_name(file, key, base, known["scenarios"]))
            elif base in scenarios and (wrong := _no_baseline(name, scenarios)):
                problems.append(ConfigProblem(file, key, *wrong))
        for key, used, kind in _names_used_by(scenario):
            if used in known.get(kind, {used}):
                continue
            if _is_given(entries[name].raw, key):
                place = f"{entries[name].key}.{key}"
                problems.append(unknown_name(file, place, used, known[kind]))
            if kind == "stores":
                del scenarios[name]


def _is_given(raw: Any, key: str) -> bool:
    """Tell whether an entry has a key, or the key of a mapping in it, itself and does not inherit it."""
    outer, _, inner = key.partition(".")
    return outer in raw and (not inner or inner in raw[outer])


def _names_used_by(scenario: Scenario) -> Iterator[tuple[str, str, str]]:
    """Yield the models and the programs beside the server that a scenario names: key, name, kind."""
    for model in scenario.gpu_memory_utilization:
        yield f"gpu_memory_utilization.{model}", model, "models"
    for model, stand_in in scenario.serves.items():
        yield f"serves.{model}", model, "models"
        yield f"serves.{model}", stand_in, "models"
    if scenario.store is not None:
        yield "store", scenario.store, "stores"
    for program in scenario.companions:
        yield f"companions.{program}", program, "sidecars"


def check_releases(
    releases: Mapping[str, Release],
    entries: Entries,
    known: Mapping[str, set[str]],
    problems: list[ConfigProblem],
) -> None:
    """Check the names of releases' images, in `known` as `images`."""
    for name, release in releases.items():
        for image in release.images.by_name.keys() - known["images"]:
            entry = entries[name]
            key = f"{entry.key}.images.{image}"
            problems.append(unknown_name(entry.file, key, image, known["images"]))


def _no_baseline(
    name: str, scenarios: Mapping[str, Scenario]
) -> tuple[str, str, str] | None:
    """Return why a scenario's baseline is not valid: what is wrong, what would be right, and a code.

    A baseline may have a tier only if it is the same arm, with another build or other settings: then sizes are equal.
    """
    chain = [name]
    while (base := scenarios[chain[-1]].baseline) is not None and base in scenarios:
        if base in chain:
            circle = " -> ".join([*chain, base])
            return (
                f"baselines form a cycle: {circle}",
                "a scenario without baseline at its end",
                "circle",
            )
        chain.append(base)
    other = scenarios[chain[1]]
    if (other.baseline is not None or other.cpu_tier) and not scenarios[name].same_arm(
        other
    ):
        right = "a scenario without baseline and CPU tier, or the same arm with another build or other settings"
        return (
            f"{chain[1]!r} cannot be the baseline of another arm",
            right,
            "no_baseline",
        )
    return None


def _no_entry(kind: str, name: str) -> str:
    """Return what to say of a name that is no entry, with how a model becomes one."""
    how = f"; with its config.json it is one: models: {{{name}: {{config: FILE}}}}"
    return f"there is no {name!r}{how if kind == 'models' else ''}"


def check_names(
    campaign: Mapping[str, Any], place: str, known: Mapping[str, set[str]]
) -> list[ConfigProblem]:
    """Check the names that a raw campaign uses, before its types, so that other mistakes do not hide these.

    `known` lacks the kinds that could not be read. Values that are not text are left to the validation of types.
    """
    return [
        unknown_name(place, key, name, known[kind], _no_entry(kind, name))
        for key, name, kind in _names_used(campaign)
        if isinstance(name, str) and kind in known and name not in known[kind]
    ]


def _names_used(campaign: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield the names of entries that a campaign uses, as read: key, name, kind."""
    yield "workload", campaign.get("workload"), "workloads"
    yield "gpu", campaign.get("gpu"), "gpus"
    server = campaign.get("server")
    if isinstance(server, Mapping):
        yield "server.release", server.get("release"), "releases"
        images = server.get("images")
        for name in images if isinstance(images, Mapping) else ():
            yield f"server.images.{name}", name, "images"
    for place, entry in _items(campaign.get("matrix")):
        given = entry if isinstance(entry, Mapping) else {}
        for kind in ("models", "scenarios"):
            for position, name in _items(given.get(kind)):
                yield f"matrix{place}.{kind}{position}", name, kind


def _items(value: Any) -> list[tuple[str, Any]]:
    """Return what a list or a mapping holds, each with the end of its key; nothing of another value."""
    if isinstance(value, Mapping):
        return [(f".{name}", item) for name, item in value.items()]
    return (
        [(f"[{index}]", item) for index, item in enumerate(value)]
        if isinstance(value, list | tuple)
        else []
    )
