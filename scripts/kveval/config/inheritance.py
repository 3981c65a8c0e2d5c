"""A campaign that extends another one: what its file leaves out comes from the file it extends, in the same folder.

Mappings merge key by key, everything else is replaced. `matrix` replaces the other's cells, `add_matrix` adds to them.
What says which campaign it is - name, title, description, results - is never taken over: a campaign that extends
another has its results in results/campaigns/NAME, or in the folder that it names, which may be the other's.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kveval.config.problems import ConfigError, ConfigProblem, closest, kind_of
from kveval.config.types import NAME_PATTERN
from kveval.config.yaml_files import read_yaml

EXTENDS = "extends"
ADDED = "add_matrix"
OWN_KEYS = ("name", "title", "description", "results")
"""Keys that say which campaign it is."""


@dataclass(frozen=True)
class CampaignSource:
    """A campaign as read, complete. `origins`: key -> the file it comes from, and its key there."""

    raw: dict[str, Any]
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def located(self, problem: ConfigProblem, place: str) -> ConfigProblem:
        """Say of a problem in the complete campaign, known as `place`, in which file it is to be mended."""
        if problem.file != place:
            return problem
        file, key = self._origin(problem.key) or (place, problem.key)
        return ConfigProblem(file, key, problem.message, problem.valid)

    def _origin(self, key: str) -> tuple[str, str] | None:
        known = [path for path in self.origins if re.match(re.escape(path) + r"(?=$|[.\[])", key)]
        if not known:
            return None
        nearest = max(known, key=len)
        file, there = self.origins[nearest]
        return file, there + key.removeprefix(nearest)


def campaign_values(path: Path) -> dict[str, Any]:
    """Return what a campaign's file and those it extends say together. Raises ConfigError with every mistake in it."""
    source, problems = read_campaign(path)
    if problems:
        raise ConfigError(problems)
    return source.raw


def read_campaign(path: Path) -> tuple[CampaignSource, list[ConfigProblem]]:
    """Read a campaign's file and those it extends; return what they say together, and every mistake found in it.

    Keys that the campaign alone may use, `extends` and `add_matrix`, are resolved and gone.
    """
    return _read(path, ())


def _read(path: Path, below: tuple[Path, ...]) -> tuple[CampaignSource, list[ConfigProblem]]:
    """Read a campaign that those in `below` extend, one after the other."""
    file = path.as_posix()
    raw, problems = read_yaml(path)
    own = {key: value for key, value in raw.items() if key not in (EXTENDS, ADDED)}
    parent, found = _parent(path, raw, (*below, path))
    if parent is None:
        problems += [*found, *_added_alone(file, raw)]
        return CampaignSource(own, dict(_origins(own, file))), problems
    base, above = _read(parent, (*below, path))
    problems += [*found, *above]
    merged = {key: value for key, value in base.raw.items() if key not in OWN_KEYS}
    origins = {key: origin for key, origin in base.origins.items() if re.split(r"[.\[]", key)[0] not in OWN_KEYS}
    _merge(merged, own, file, origins)
    problems += _add_cells(merged, raw, file, origins)
    if "results" not in merged and isinstance(merged.get("name"), str):
        merged["results"] = f"results/campaigns/{merged['name']}"
    return CampaignSource(merged, origins), problems


def _parent(path: Path, raw: Mapping[str, Any], chain: tuple[Path, ...]) -> tuple[Path | None, list[ConfigProblem]]:
    """Return the file of the campaign that is extended, or None, with what is wrong."""
    if EXTENDS not in raw:
        return None, []
    name, file = raw[EXTENDS], path.as_posix()
    if not isinstance(name, str) or not re.match(NAME_PATTERN, name):
        valid = "the name of a campaign's file in the same folder, without .yaml"
        return None, [ConfigProblem(file, EXTENDS, f"{name!r} is no name", valid)]
    parent = path.with_name(f"{name}.yaml")
    if not parent.is_file():
        others = [other.stem for other in path.parent.glob("*.yaml") if other != path]
        return None, [ConfigProblem(file, EXTENDS, f"there is no {parent.as_posix()}", closest(name, others))]
    if parent in chain:
        circle = " -> ".join(other.stem for other in (*chain[chain.index(parent) :], parent))
        return None, [ConfigProblem(file, EXTENDS, f"goes round in a circle: {circle}")]
    return parent, []


def _added_alone(file: str, raw: Mapping[str, Any]) -> list[ConfigProblem]:
    if ADDED not in raw or EXTENDS in raw:
        return []
    return [ConfigProblem(file, ADDED, "there is nothing to add to", "matrix, or extends with the campaign to add to")]


def _add_cells(
    merged: dict[str, Any], raw: Mapping[str, Any], file: str, origins: dict[str, tuple[str, str]]
) -> list[ConfigProblem]:
    """Append the cells that a campaign adds to those it extends."""
    if ADDED not in raw:
        return []
    added = raw[ADDED]
    if not isinstance(added, list):
        return [
            ConfigProblem(file, ADDED, f"is a {kind_of(added)}", "a list of models x scenarios x cpu_blocks, as matrix")
        ]
    if "matrix" in raw:
        return [
            ConfigProblem(file, ADDED, "matrix stands beside it", "matrix, which replaces, or add_matrix, which adds")
        ]
    there = merged.get("matrix", [])
    if not isinstance(there, list):
        # Reported where it is.
        return []
    for number, entry in enumerate(added):
        origins |= {f"matrix[{len(there) + number}]": (file, f"{ADDED}[{number}]")}
        if isinstance(entry, Mapping) and entry in there:
            repeated = f"is matrix[{there.index(entry)}] of what is extended"
            return [ConfigProblem(file, f"{ADDED}[{number}]", repeated, "only what is new")]
    merged["matrix"] = [*there, *added]
    return []


def _merge(
    below: dict[str, Any], above: Mapping[str, Any], file: str, origins: dict[str, tuple[str, str]], prefix: str = ""
) -> None:
    """Put `above`, of `file`, over `below`; note in `origins` which key is whose."""
    for key, value in above.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        inner = below.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            below[key] = dict(inner)
            origins[path] = (file, path)
            _merge(below[key], value, file, origins, path)
            continue
        for known in [known for known in origins if re.match(re.escape(path) + r"($|[.\[])", known)]:
            del origins[known]
        below[key] = value
        origins |= {path: (file, path), **dict(_origins(value, file, path))}


def _origins(value: Any, file: str, prefix: str = "") -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield every key of nested mappings, dotted, with its place; items of lists are found by their list."""
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        path = f"{prefix}.{key}" if prefix else str(key)
        yield path, (file, path)
        yield from _origins(inner, file, path)
