"""Mistakes in a configuration, in its own terms: file, key, what would be valid."""

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from kveval.host.errors import Failure


@dataclass(frozen=True)
class ConfigProblem:
    """One mistake: where it is, what is wrong, what would be right."""

    file: str
    key: str
    message: str
    valid: str = ""

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        return f"{place}: {self.message}" + (f" (valid: {self.valid})" if self.valid else "")


class ConfigError(Failure):
    """The configuration is wrong; `problems` holds every mistake, the message lists them one a line."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        count = len(self.problems)
        head = "" if count == 1 else f"{count} mistakes in the configuration:\n  "
        super().__init__(head + "\n  ".join(map(str, self.problems)))


def closest(name: str, known: Iterable[str]) -> str:
    """Say which of the known names `name` may have meant, and what all of them are."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    everything = ", ".join(names) if names else "nothing is declared"
    return f"did you mean {' or '.join(near)}? all: {everything}" if near else everything


def kind_of(value: object) -> str:
    """Return what YAML calls a value."""
    names = {dict: "mapping", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}
    if value is None:
        return "value left empty"
    return names.get(type(value), type(value).__name__)


def problems_of(
    error: ValidationError, kind: type[BaseModel], raw: object, file: str, prefix: str = ""
) -> list[ConfigProblem]:
    """Turn pydantic's findings into problems in the configuration's own terms."""
    found: dict[str, ConfigProblem] = {}
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and len(detail["input"]) >= detail["ctx"]["min_length"]:
            # Items that are wrong by themselves, and are reported so, do not count.
            continue
        location = _in_file(detail["loc"], raw, missing=detail["type"] == "missing")
        key = _dotted(location, prefix)
        message, valid = _explain(detail, location, kind)
        earlier = found.get(key)
        if earlier is None:
            found[key] = ConfigProblem(file, key, message, valid)
        elif message not in earlier.message:
            # Alternatives of one value: it is none of them.
            found[key] = ConfigProblem(file, key, f"{earlier.message}; or: {message}", earlier.valid or valid)
    return list(found.values())


def _in_file(location: tuple[int | str, ...], raw: object, *, missing: bool) -> tuple[int | str, ...]:
    """Drop what pydantic adds to a location that is not in the file: names of alternatives, `[key]` marks."""
    kept: list[int | str] = []
    for place, part in enumerate(location, start=1):
        inside: Any = raw if isinstance(raw, Mapping) else dict(enumerate(raw)) if isinstance(raw, list | tuple) else {}
        if part in inside:
            raw = inside[part]
        elif not (missing and place == len(location)):
            continue
        kept.append(part)
    return tuple(kept)


def _dotted(location: tuple[int | str, ...], prefix: str) -> str:
    text = prefix
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _explain(detail: Any, location: tuple[int | str, ...], kind: type[BaseModel]) -> tuple[str, str]:
    """Return what is wrong and what would be valid."""
    value, context = detail["input"], detail.get("ctx", {})
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    match detail["type"]:
        case "extra_forbidden":
            explanation = "unknown key", closest(str(location[-1]), _fields_at(kind, location[:-1]))
        case "missing":
            explanation = "is missing", ""
        case "literal_error":
            explanation = f"{shown} is not known", closest(str(value), re.findall(r"'([^']*)'", context["expected"]))
        case "value_error":
            explanation = str(context["error"]), ""
        case "string_type" if isinstance(value, int | float):
            explanation = f"{shown} is read as a {kind_of(value)}", "text, in quotes"
        case "tuple_type":
            explanation = f"{shown} is a {kind_of(value)}", "a list, in [ ]"
        case "dict_type" | "model_type":
            explanation = f"{shown} is a {kind_of(value)}", "a mapping of keys to values"
        case "string_pattern_mismatch":
            explanation = f"{shown} cannot be used here", f"text that matches {context['pattern']}"
        case _:
            explanation = f"{shown}: {detail['msg'][0].lower()}{detail['msg'][1:]}", ""
    return explanation


def _fields_at(kind: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the mapping at `location` may have."""
    candidates: list[type[BaseModel]] = [kind]
    for part in location:
        fields = [found[part] for model in candidates if part in (found := _keys(model))]
        if fields:
            candidates = [model for field in fields for model in _models_in(field.annotation)]
    return sorted({str(key) for model in candidates for key in _keys(model)})


def _keys(model: type[BaseModel]) -> dict[int | str, FieldInfo]:
    """Return a model's fields by the keys they have in files."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for inner in typing.get_args(annotation) for model in _models_in(inner)]
