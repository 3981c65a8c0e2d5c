"""Mistakes in a configuration, in terms of its files: file, key, what would be valid."""

import difflib
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo

from kveval.host.errors import Failure
from kveval.host.values import Mistake


@dataclass(frozen=True)
class ConfigProblem:
    """One mistake: where it is, what is wrong, what would be right.

    `code`: a stable identifier of the kind of mistake; `near`: known names similar to an unknown one, most similar
    first.
    """

    file: str
    key: str
    message: str
    valid: str = ""
    code: str = ""
    near: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}" if self.key else self.file
        return f"{place}: {self.message}" + (
            f" (valid: {self.valid})" if self.valid else ""
        )


MISTAKES = "mistakes"
"""Key of the validation's context with the list that gets the mistakes of values that do not go together."""


def refuse(mistakes: Iterable[Mistake], info: ValidationInfo, key: str = "") -> None:
    """Note mistakes in values that do not go together, of the mapping at `key`, so that the others are found as well.

    Raises the first one where the validation collects none.
    """
    noted = (info.context or {}).get(MISTAKES)
    for mistake in mistakes:
        if noted is None:
            raise mistake
        noted.append((key, mistake))


class ConfigError(Failure):
    """The configuration is wrong; `problems` holds every mistake, and the message lists one per line."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        count = len(self.problems)
        head = "" if count == 1 else f"{count} mistakes in the configuration:\n  "
        super().__init__(head + "\n  ".join(map(str, self.problems)))


def unknown_name(
    file: str, key: str, name: str, known: Iterable[str], message: str = ""
) -> ConfigProblem:
    """Return the problem that `name` is not a known name; `message` replaces the usual one."""
    valid, near = closest(name, known)
    return ConfigProblem(
        file, key, message or f"there is no {name!r}", valid, "unknown_name", near
    )


def closest(name: str, known: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return a hint with the known names similar to `name` and all known names; and the similar names."""
    names = sorted(known)
    near = tuple(difflib.get_close_matches(name, names, n=2, cutoff=0.5))
    everything = ", ".join(names) if names else "nothing is declared"
    return (
        f"did you mean {' or '.join(near)}? all: {everything}" if near else everything
    ), near


def kind_of(value: object) -> str:
    """Return the name of a value's type in YAML, for messages."""
    names = {
        dict: "mapping",
        list: "list",
        str: "text",
        bool: "truth value",
        int: "number",
        float: "number",
    }
    if value is None:
        return "value left empty"
    return names.get(type(value), type(value).__name__)


def problems_of(
    error: ValidationError,
    kind: type[BaseModel],
    raw: object,
    file: str,
    prefix: str = "",
) -> list[ConfigProblem]:
    """Convert pydantic's errors to problems in terms of the configuration's files."""
    by_key: dict[str, list[ConfigProblem]] = {}
    details = error.errors(include_url=False)
    locations = [_in_file(one["loc"], raw, missing=True) for one in details]
    outside = {location[:-1] for location in locations if location}
    for detail in details:
        if (
            detail["type"] == "too_short"
            and len(detail["input"]) >= detail["ctx"]["min_length"]
        ):
            # Too short only because invalid items, which have errors of their own, do not count.
            continue
        location = _in_file(detail["loc"], raw, missing=detail["type"] == "missing")
        alternative = detail["type"].endswith("_type")
        if alternative and location in outside and isinstance(detail["input"], Mapping):
            # Not what the first alternative takes, but another one has errors inside of it.
            continue
        key = _dotted(location, prefix)
        problem = ConfigProblem(file, key, *_explain(detail, location, kind))
        by_key.setdefault(key, []).append(problem)
    return [_either(problems) for problems in by_key.values()]


def _either(problems: Sequence[ConfigProblem]) -> ConfigProblem:
    """Return the problem of a value that is none of several alternatives, each of which has one with it."""
    messages = dict.fromkeys(problem.message for problem in problems)
    valid = next((problem.valid for problem in problems if problem.valid), "")
    return replace(problems[0], message="; or: ".join(messages), valid=valid)


def _in_file(
    location: tuple[int | str, ...], raw: object, *, missing: bool
) -> tuple[int | str, ...]:
    """Drop the parts of pydantic's location that are not in the file: names of alternatives, `[key]` marks."""
    kept: list[int | str] = []
    for place, part in enumerate(location, start=1):
        inside = _entries_of(raw)
        if part in inside:
            raw = inside[part]
        elif not (missing and place == len(location)):
            continue
        kept.append(part)
    return tuple(kept)


def _entries_of(raw: object) -> Mapping[Any, Any]:
    """The values of a mapping by key, those of a list by number; nothing of another value."""
    if isinstance(raw, Mapping):
        return raw
    return dict(enumerate(raw)) if isinstance(raw, list | tuple) else {}


def _dotted(location: tuple[int | str, ...], prefix: str) -> str:
    text = prefix
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _explain(
    detail: Any, location: tuple[int | str, ...], kind: type[BaseModel]
) -> tuple[str, str, str, tuple[str, ...]]:
    """Return what is wrong, what would be valid, the code of the mistake, and the known names most similar."""
    value, context, code = detail["input"], detail.get("ctx", {}), detail["type"]
    near: tuple[str, ...] = ()
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    match code:
        case "extra_forbidden":
            message, code = "unknown key", "unknown_key"
            models = _models_at(kind, location[:-1])
            key = _usual_key(str(location[-1]), models)
            valid, near = closest(key, _fields_of(models))
        case "missing":
            message, valid = "is missing", ""
        case "literal_error":
            message, code = f"{shown} is not known", "unknown_name"
            valid, near = closest(
                str(value), re.findall(r"'([^']*)'", context["expected"])
            )
        case "value_error":
            message, valid, code = (
                str(context["error"]),
                "",
                getattr(context["error"], "code", code),
            )
        case "string_type" if isinstance(value, int | float):
            message, valid = f"{shown} is read as a {kind_of(value)}", "text, in quotes"
        case "tuple_type":
            message, valid = f"{shown} is a {kind_of(value)}", "a list, in [ ]"
        case "dict_type" | "model_type":
            message, valid = (
                f"{shown} is a {kind_of(value)}",
                "a mapping of keys to values",
            )
        case "string_pattern_mismatch":
            message, valid = (
                f"{shown} cannot be used here",
                f"text that matches {context['pattern']}",
            )
        case _:
            message, valid = (
                f"{shown}: {detail['msg'][0].lower()}{detail['msg'][1:]}",
                "",
            )
    return message, valid, code, near


def _usual_key(name: str, models: Iterable[type[BaseModel]]) -> str:
    """Return the key that an unknown one is another word for, by the models' `other_words`; else the name itself."""
    for model in models:
        words: Mapping[str, str] = getattr(model, "other_words", {})
        if name in words:
            return words[name]
    return name


def _models_at(
    kind: type[BaseModel], location: tuple[int | str, ...]
) -> list[type[BaseModel]]:
    """Return the models that the mapping at `location` may be of."""
    candidates: list[type[BaseModel]] = [kind]
    for part in location:
        fields = [
            found[part] for model in candidates if part in (found := _keys(model))
        ]
        if fields:
            candidates = [
                model for field in fields for model in _models_in(field.annotation)
            ]
    return candidates


def _fields_of(models: Iterable[type[BaseModel]]) -> list[str]:
    """Return the keys that a mapping of any of these models may have."""
    return sorted({str(key) for model in models for key in _keys(model)})


def _keys(model: type[BaseModel]) -> dict[int | str, FieldInfo]:
    """Return a model's fields by the keys they have in files."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [
        model for inner in typing.get_args(annotation) for model in _models_in(inner)
    ]
