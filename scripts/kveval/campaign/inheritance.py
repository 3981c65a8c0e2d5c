"""Reads YAML files, and completes campaigns and entries of catalogues from those that they extend.

Mappings merge key by key, everything else is replaced. A campaign extends a file of the same folder; its `matrix`
replaces the other's cells, `add_matrix` adds to them. Name, title, description and results are never inherited: a
campaign's file without the key `results` has its results in results/campaigns/NAME, so that no two campaigns write one
report; a follow-up names the folder of the other.
"""

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from kveval.campaign.problems import ConfigError, ConfigProblem, kind_of, unknown_name
from kveval.campaign.site import Cluster
from kveval.campaign.types import NAME_PATTERN

EXTENDS = "extends"
ADDED = "add_matrix"
OWN_KEYS = ("name", "title", "description", "results")
"""Keys that are never inherited."""


@dataclass(frozen=True)
class CampaignSource:
    """A campaign as read, with what it inherits.

    `files`: path and content of the campaign's file, then of those it extends; `added`: key of an entry that
    add_matrix appended -> file, and its key there.
    """

    raw: dict[str, Any]
    files: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    added: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def located(self, problem: ConfigProblem, place: str) -> ConfigProblem:
        """Return a problem in the complete campaign, known as `place`, with the file in which to correct it."""
        if problem.file != place or not self.files:
            return problem
        for cell, (file, there) in self.added.items():
            if _begins(problem.key, cell):
                return replace(
                    problem, file=file, key=there + problem.key.removeprefix(cell)
                )
        file, _ = max(self.files, key=lambda entry: _reach(entry[1], problem.key))
        return replace(problem, file=file)


def _begins(key: str, part: str) -> bool:
    return key.startswith(part) and key[len(part) : len(part) + 1] in ("", ".", "[")


def _reach(value: Any, key: str) -> int:
    """Return how far into nested mappings a dotted key leads; names may have dots themselves."""
    names = (
        [name for name in value if _begins(key, str(name))]
        if isinstance(value, Mapping)
        else []
    )
    return max(
        (
            len(str(name)) + _reach(value[name], key[len(str(name)) + 1 :])
            for name in names
        ),
        default=0,
    )


def campaign_values(path: Path) -> dict[str, Any]:
    """Return a campaign's values, inherited ones included. Raises ConfigError with every mistake in its inheritance."""
    source, problems = read_campaign(path)
    if problems:
        raise ConfigError(problems)
    return source.raw


def with_site(campaign: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a campaign's values with a site file merged over its `cluster`; unchanged unless engine is kubernetes.

    Raises ConfigError with the mistakes in the file.
    """
    if campaign.get("engine") != "kubernetes":
        return dict(campaign)
    raw, problems = read_yaml(path)
    keys = Cluster.model_fields
    unknown = [key for key in raw if key not in keys]
    problems += [
        unknown_name(path.as_posix(), key, key, keys, "is not a key of cluster")
        for key in unknown
    ]
    if problems:
        raise ConfigError(problems)
    return merged(campaign, {"cluster": raw})


def read_campaign(path: Path) -> tuple[CampaignSource, list[ConfigProblem]]:
    """Read a campaign's file and those it extends; return the merged campaign, and every mistake found in it.

    `extends` and `add_matrix` are resolved and no longer in it.
    """
    problems: list[ConfigProblem] = []
    source = _read(path, (), problems)
    name = source.raw.get("name")
    folder = {"results": f"results/campaigns/{name}"} if isinstance(name, str) else {}
    return replace(source, raw={**folder, **source.raw}), problems


def _read(
    path: Path, below: tuple[Path, ...], problems: list[ConfigProblem]
) -> CampaignSource:
    """Read a campaign; `below`: the chain of files that extend it, to detect cycles. Mistakes go to `problems`."""
    file = path.as_posix()
    raw, found = read_yaml(path)
    problems += found
    own = {key: value for key, value in raw.items() if key not in (EXTENDS, ADDED)}
    parent = _parent(path, raw, (*below, path), problems)
    if parent is None:
        if ADDED in raw and EXTENDS not in raw:
            valid = "matrix, or extends with the campaign to add to"
            problems.append(
                ConfigProblem(
                    file, ADDED, "there is nothing to add to", valid, "nothing_extended"
                )
            )
        return CampaignSource(own, ((file, own),))
    base = _read(parent, (*below, path), problems)
    complete = merged(_without_own(base.raw), own)
    added = {} if "matrix" in own else dict(base.added)
    if ADDED in raw:
        problems += _add_cells(complete, raw, file, added)
    return CampaignSource(
        complete,
        (
            (file, own),
            *((other, _without_own(raw)) for other, raw in base.files),
        ),
        added,
    )


def _without_own(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in OWN_KEYS}


def _parent(
    path: Path,
    raw: Mapping[str, Any],
    chain: tuple[Path, ...],
    problems: list[ConfigProblem],
) -> Path | None:
    """Return the file of the campaign that `raw` extends, or None if it extends none that can be read."""
    if EXTENDS not in raw:
        return None
    name, file = raw[EXTENDS], path.as_posix()
    parent = path.parent / f"{name}.yaml"
    if not isinstance(name, str) or not re.match(NAME_PATTERN, name):
        valid = "the name of a campaign's file in the same folder, without .yaml"
        problems.append(
            ConfigProblem(file, EXTENDS, f"{name!r} is not a name", valid, "no_name")
        )
    elif not parent.is_file():
        others = [other.stem for other in path.parent.glob("*.yaml") if other != path]
        problems.append(
            unknown_name(
                file, EXTENDS, name, others, f"there is no {parent.as_posix()}"
            )
        )
    elif parent in chain:
        circle = " -> ".join(
            other.stem for other in (*chain[chain.index(parent) :], parent)
        )
        problems.append(
            ConfigProblem(file, EXTENDS, f"forms a cycle: {circle}", code="circle")
        )
    else:
        return parent
    return None


def _add_cells(
    complete: dict[str, Any],
    raw: Mapping[str, Any],
    file: str,
    places: dict[str, tuple[str, str]],
) -> Iterator[ConfigProblem]:
    """Append the entries of a campaign's add_matrix to the inherited matrix; record their file and key in `places`."""
    added, there = raw[ADDED], complete.get("matrix", [])
    if not isinstance(added, list):
        valid = "a list of models x scenarios x cpu_blocks, as matrix"
        yield ConfigProblem(file, ADDED, f"is a {kind_of(added)}", valid, "no_list")
    elif "matrix" in raw:
        valid = "matrix, which replaces, or add_matrix, which adds"
        yield ConfigProblem(
            file, ADDED, "matrix is given as well", valid, "beside_matrix"
        )
    # If `there` is no list, the type check reports this mistake in the other file.
    elif isinstance(there, list):
        complete["matrix"] = [*there, *added]
        for number, entry in enumerate(added):
            key = f"{ADDED}[{number}]"
            places[f"matrix[{len(there) + number}]"] = (file, key)
            if isinstance(entry, Mapping) and entry in there:
                repeated = (
                    f"repeats matrix[{there.index(entry)}] of the extended campaign"
                )
                yield ConfigProblem(file, key, repeated, "only new cells", "repeated")


class _Loader(yaml.CSafeLoader):
    """Safe loader that refuses duplicate keys; PyYAML would silently keep the last."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if (
                isinstance(key, yaml.ScalarNode)
                and key.tag != "tag:yaml.org,2002:merge"
            ):
                if key.value in seen:
                    message = f"key {key.value!r} is given twice, first in line {seen[key.value]}"
                    raise yaml.constructor.ConstructorError(
                        None, None, message, key.start_mark
                    )
                seen[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> tuple[dict[str, Any], list[ConfigProblem]]:
    """Read a mapping from a YAML file; unreadable, empty or other content is a problem, not an exception."""
    name = path.as_posix()
    try:
        content = yaml.load(path.read_bytes(), Loader=_Loader)
    except FileNotFoundError:
        return {}, [ConfigProblem(name, "", "there is no such file", code="no_file")]
    except OSError as error:
        return {}, [
            ConfigProblem(
                name, "", f"cannot be read: {error.strerror}", code="unreadable"
            )
        ]
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError, UnicodeDecodeError) as error:
        return {}, [ConfigProblem(name, "", _syntax(error), code="syntax")]
    if not isinstance(content, dict):
        message, code = (
            ("is empty", "empty")
            if content is None
            else (f"holds a {kind_of(content)}", "no_mapping")
        )
        return {}, [
            ConfigProblem(name, "", message, "a mapping of keys to values", code)
        ]
    named = {key: value for key, value in content.items() if isinstance(key, str)}
    strange = [key for key in content if key not in named]
    return named, [
        ConfigProblem(
            name, str(key), "keys are text", f'"{key}" in quotes', "key_no_text"
        )
        for key in strange
    ]


def _syntax(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    cause = getattr(error, "problem", None) or str(error).splitlines()[0]
    return (
        f"line {mark.line + 1}: {cause}" if mark is not None else f"not YAML: {cause}"
    )


@dataclass(frozen=True)
class YamlEntry:
    """One catalogue entry as read: its value, its file, its key in that file."""

    raw: Any
    file: str
    key: str

    @property
    def parent(self) -> str | None:
        """Name of the entry that this one extends."""
        name = self.raw.get("extends") if isinstance(self.raw, Mapping) else None
        return name if isinstance(name, str) else None


def resolve_extends(
    name: str, entries: Mapping[str, YamlEntry]
) -> tuple[dict[str, Any] | None, list[ConfigProblem]]:
    """Complete an entry from those it extends: mappings merge key by key, anything else is replaced.

    Returns None and the problem if an extended entry is missing or the chain forms a cycle.
    """
    chain = [name]
    while (parent := entries[chain[-1]].parent) is not None:
        last = entries[chain[-1]]
        if parent not in entries:
            return None, [
                unknown_name(last.file, f"{last.key}.extends", parent, entries)
            ]
        if parent in chain:
            circle = " -> ".join([*chain, parent])
            message = f"forms a cycle: {circle}"
            return None, [
                ConfigProblem(last.file, f"{last.key}.extends", message, code="circle")
            ]
        chain.append(parent)
    raws = [entries[link].raw for link in reversed(chain)]
    if not all(isinstance(raw, Mapping) for raw in raws):
        return None, []
    complete: dict[str, Any] = {}
    for raw in raws:
        complete = merged(complete, raw)
    return complete, []


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` merged over `below`: mappings merge key by key, anything else is replaced."""
    found = dict(below)
    for key, value in above.items():
        inner = found.get(key)
        found[key] = (
            merged(inner, value)
            if isinstance(inner, Mapping) and isinstance(value, Mapping)
            else value
        )
    return found
