"""A server's arguments and variables as settings by name, each of a kind, so that two servers can be compared."""

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SETTING, VARIABLE = "setting", "variable"
"""The kinds of arguments and variables of which nothing else is known."""
_CONNECTOR = "kv_connector"


@dataclass(frozen=True)
class ServerSettings:
    """The kinds, short names and defaults of a server's arguments and variables.

    Attributes:
        kinds: kind by argument, such as `--max-num-seqs`, or variable; those of kind `arm` belong to arms.
        arm_variables: how the names of variables begin that belong to arms.
        defaults: the value of an argument that is not given, where it is the same in all releases.
        short: short names of arguments.
        resizing: arguments of arms that change how many tokens the device holds.
        connectors: by kind of arm, the connectors that its arms have; a kind that is not here may have any.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    arm_variables: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    resizing: frozenset[str] = frozenset()
    connectors: Mapping[str, Collection[str]] = field(default_factory=dict)

    def of(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        arm_flags: Collection[str] = (),
    ) -> dict[str, str]:
        """Return the settings of a server as `kind/name` -> value, defaults included; `arm_flags` belong to arms."""
        kinds = {**self.kinds, **dict.fromkeys(arm_flags, "arm")}
        settings = {
            f"{kinds.get(name, SETTING)}/{name}": canonical(value)
            for name, value in {**self.defaults, **self.arguments(argv)}.items()
        }
        for name, value in env.items():
            own = name.startswith(self.arm_variables) if self.arm_variables else False
            kind = "arm" if own else self.kinds.get(name, VARIABLE)
            settings[f"{kind}/{name}"] = canonical(value)
        return settings

    def arguments(self, argv: Sequence[str]) -> dict[str, str]:
        """Return the arguments by their long names, `true` and `false` for those without a value.

        `--a=b`, `--a b` and `--no-a` are read; of a repeated one the last counts, as for the server. What stands before
        the first argument is the command, and is not returned.
        """
        values: dict[str, list[str]] = {}
        words: list[str] = []
        for word in argv:
            if not re.match(r"--?[A-Za-z]", word):
                words.append(word)
                continue
            name, equals, value = word.partition("=")
            name = self.short.get(name, name.replace("_", "-"))
            words = values[name] = [value] if equals else []
        named = {name: " ".join(given) for name, given in values.items()}
        return dict(itertools.starmap(_truth, named.items()))


def _truth(name: str, value: str) -> tuple[str, str]:
    """An argument with a value; one without is a switch, which `--no-` turns off."""
    if value:
        return name, value
    off = name.startswith("--no-")
    return (f"--{name[5:]}", "false") if off else (name, "true")


def canonical(value: Any) -> str:
    """Return a value as text that is equal for equal values: numbers without zeros at the end, JSON with sorted keys."""
    text = str(value)
    if text.startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            text = json.dumps(json.loads(text), sort_keys=True)
        return text
    if re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", text):
        return f"{float(text):.12g}"
    return text.lower() if text.lower() in ("true", "false") else text


def connectors(argv: Sequence[str]) -> list[str]:
    """Return the names of the KV connectors in a server's arguments, those inside of others included."""
    names: list[str] = []
    for word in argv:
        text = word.partition("=")[2] if word.startswith("--") else word
        if _CONNECTOR in text:
            with contextlib.suppress(ValueError):
                names += _names(json.loads(re.sub(r"\{\w+\}", "0", text)))
    return names


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for part in value:
            yield from _names(part)
    elif isinstance(value, dict):
        if _CONNECTOR in value:
            yield str(value[_CONNECTOR])
        for part in value.values():
            yield from _names(part)
