"""Reads YAML files, refuses duplicate keys, and completes entries from those they extend."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kveval.config.problems import ConfigProblem, kind_of, unknown_name


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
