"""Reads YAML files, and completes campaigns and entries of catalogues from those that they extend.

Mappings merge key by key, everything else is replaced. A campaign extends a file of the same folder; its `matrix`
replaces the other's cells, `add_matrix` adds to them. Name, title, description and results are never inherited: a
campaign's file without the key `results` has its results in results/campaigns/NAME, so that no two campaigns write one
report; a follow-up names the folder of the other.
"""

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from kveval.config.problems import ConfigError, ConfigProblem, kind_of, unknown_name
from kveval.config.site import Cluster
from kveval.config.types import NAME_PATTERN

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
                return replace(problem, file=file, key=there + problem.key.removeprefix(cell))
        file, _ = max(self.files, key=lambda entry: _reach(entry[1], problem.key))
        return replace(problem, file=file)


def _begins(key: str, part: str) -> bool:
    return key.startswith(part) and key[len(part) : len(part) + 1] in ("", ".", "[")


def _reach(value: Any, key: str) -> int:
    """Return how far into nested mappings a dotted key leads; names may have dots themselves."""
    names = [name for name in value if _begins(key, str(name))] if isinstance(value, Mapping) else []
    return max((len(str(name)) + _reach(value[name], key[len(str(name)) + 1 :]) for name in names), default=0)


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
    problems += [unknown_name(path.as_posix(), key, key, keys, "is not a key of cluster") for key in unknown]
    if problems:
        raise ConfigError(problems)
    return merged(campaign, {"cluster": raw})


def read_campaign(path: Path) -> tuple[CampaignSource, list[ConfigProblem]]:
    """Read a campaign's file and those it extends; return the merged campaign, and every mistake found in it.

    `extends` and `add_matrix` are resolved and no longer in it.
    """
    return _read(path, ())


def _read(path: Path, below: tuple[Path, ...]) -> tuple[CampaignSource, list[ConfigProblem]]:
    """Read a campaign; `below`: the chain of files that extend it, to detect cycles."""
    file = path.as_posix()
    raw, problems = read_yaml(path)
    own = {key: value for key, value in raw.items() if key not in (EXTENDS, ADDED)}
    parent, found = _parent(path, raw, (*below, path))
    if parent is None:
        problems += [*found, *_added_alone(file, raw)]
        return CampaignSource(_with_folder(own), ((file, own),)), problems
    base, above = _read(parent, (*below, path))
    problems += [*found, *above]
    complete = merged(_without_own(base.raw), own)
    added = {} if "matrix" in own else dict(base.added)
    problems += _add_cells(complete, raw, file, added)
    files = ((file, own), *((other, _without_own(said)) for other, said in base.files))
    return CampaignSource(_with_folder(complete), files, added), problems


def _with_folder(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a campaign with a folder of its own where its file gives none."""
    folder = {"results": f"results/campaigns/{raw['name']}"} if isinstance(raw.get("name"), str) else {}
    return {**folder, **raw}


def _without_own(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in OWN_KEYS}


def _parent(path: Path, raw: Mapping[str, Any], chain: tuple[Path, ...]) -> tuple[Path | None, list[ConfigProblem]]:
    """Return the file of the campaign that `raw` extends, or None, and the mistakes found."""
    if EXTENDS not in raw:
        return None, []
    name, file = raw[EXTENDS], path.as_posix()
    if not isinstance(name, str) or not re.match(NAME_PATTERN, name):
        valid = "the name of a campaign's file in the same folder, without .yaml"
        return None, [ConfigProblem(file, EXTENDS, f"{name!r} is not a name", valid, "no_name")]
    parent = path.with_name(f"{name}.yaml")
    if not parent.is_file():
        others = [other.stem for other in path.parent.glob("*.yaml") if other != path]
        return None, [unknown_name(file, EXTENDS, name, others, f"there is no {parent.as_posix()}")]
    if parent in chain:
        circle = " -> ".join(other.stem for other in (*chain[chain.index(parent) :], parent))
        return None, [ConfigProblem(file, EXTENDS, f"forms a cycle: {circle}", code="circle")]
    return parent, []


def _added_alone(file: str, raw: Mapping[str, Any]) -> list[ConfigProblem]:
    if ADDED not in raw or EXTENDS in raw:
        return []
    valid = "matrix, or extends with the campaign to add to"
    return [ConfigProblem(file, ADDED, "there is nothing to add to", valid, "nothing_extended")]


def _add_cells(
    complete: dict[str, Any], raw: Mapping[str, Any], file: str, places: dict[str, tuple[str, str]]
) -> list[ConfigProblem]:
    """Append the entries of a campaign's add_matrix to the inherited matrix; record their file and key in `places`."""
    if ADDED not in raw:
        return []
    added = raw[ADDED]
    if not isinstance(added, list):
        valid = "a list of models x scenarios x cpu_blocks, as matrix"
        return [ConfigProblem(file, ADDED, f"is a {kind_of(added)}", valid, "no_list")]
    if "matrix" in raw:
        valid = "matrix, which replaces, or add_matrix, which adds"
        return [ConfigProblem(file, ADDED, "matrix is given as well", valid, "beside_matrix")]
    there = complete.get("matrix", [])
    if not isinstance(there, list):
        # The type check reports this mistake in the other file.
        return []
    for number, entry in enumerate(added):
        places[f"matrix[{len(there) + number}]"] = (file, f"{ADDED}[{number}]")
        if isinstance(entry, Mapping) and entry in there:
            repeated = f"repeats matrix[{there.index(entry)}] of the extended campaign"
            return [ConfigProblem(file, f"{ADDED}[{number}]", repeated, "only new cells", "repeated")]
    complete["matrix"] = [*there, *added]
    return []


class _Loader(yaml.CSafeLoader):
    """Safe loader that refuses duplicate keys; PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} is given twice, first in line {seen[key.value]}", key.start_mark
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
        return {}, [ConfigProblem(name, "", f"cannot be read: {error.strerror}", code="unreadable")]
    except (yaml.MarkedYAMLError, yaml.reader.ReaderError, UnicodeDecodeError) as error:
        return {}, [ConfigProblem(name, "", _syntax(error), code="syntax")]
    if content is None:
        return {}, [ConfigProblem(name, "", "is empty", "a mapping of keys to values", "empty")]
    if not isinstance(content, dict):
        said = f"holds a {kind_of(content)}"
        return {}, [ConfigProblem(name, "", said, "a mapping of keys to values", "no_mapping")]
    strange = [
        ConfigProblem(name, str(key), "keys are text", f'"{key}" in quotes', "key_no_text")
        for key in content
        if not isinstance(key, str)
    ]
    return {key: value for key, value in content.items() if isinstance(key, str)}, strange


def _syntax(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    cause = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {cause}" if mark is not None else f"not YAML: {cause}"


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


def resolve_extends(name: str, entries: Mapping[str, YamlEntry]) -> tuple[dict[str, Any] | None, list[ConfigProblem]]:
    """Complete an entry from those it extends: mappings merge key by key, anything else is replaced.

    Returns None and the problem if an extended entry is missing or the chain forms a cycle.
    """
    chain = [name]
    while (parent := entries[chain[-1]].parent) is not None:
        last = entries[chain[-1]]
        if parent not in entries:
            return None, [unknown_name(last.file, f"{last.key}.extends", parent, entries)]
        if parent in chain:
            circle = " -> ".join([*chain, parent])
            said = f"forms a cycle: {circle}"
            return None, [ConfigProblem(last.file, f"{last.key}.extends", said, code="circle")]
        chain.append(parent)
    complete: dict[str, Any] = {}
    for link in reversed(chain):
        raw = entries[link].raw
        if not isinstance(raw, Mapping):
            return None, []
        complete = merged(complete, raw)
    return complete, []


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` merged over `below`: mappings merge key by key, anything else is replaced."""
    found = dict(below)
    for key, value in above.items():
        inner = found.get(key)
        found[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return found
