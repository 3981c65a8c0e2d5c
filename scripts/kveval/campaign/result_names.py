"""The facts that the name of an existing result declares, parsed by a grammar of whole fields.

A result folder is HARDWARE_SOFTWARE[-mempress]_MODEL_ARM[-10k|-20k|-20kcpu]_replicaN_rateC. Names of older results have
fewer fields; `parse_fields` accepts any of the fields in this order, with known models and arms only.
"""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from kveval.host.errors import Failure

_NUMBER = r"[1-9]\d*"
_HARDWARE = (
    rf"(?P<hardware>(?P<nodes>{_NUMBER})x(?P<gpus>{_NUMBER})x(?P<gpu>[A-Za-z0-9.+-]+))"
)
_SOFTWARE = r"(?P<software>[^_/]+?)(?P<mempress>-mempress)?"
_SIZE = rf"(?:-(?P<thousands>{_NUMBER})k(?P<cpu>cpu)?)?"
_REPLICAS, _RATE = rf"(?P<replicas>{_NUMBER})", rf"(?P<rate>{_NUMBER})"
_FOLDER = re.compile(
    rf"{_HARDWARE}_{_SOFTWARE}_(?P<model>[^_]+)_(?P<arm>[^_]+?){_SIZE}_replica{_REPLICAS}_rate{_RATE}"
)
_WANTED = "HARDWARE_SOFTWARE[-mempress]_MODEL_ARM[-10k]_replicaN_rateC"
# NVIDIA's and AMD's GPUs for inference; others have to be named in the import.
GPUS = frozenset(
    (
        *(
            "T4",
            "V100",
            "A10",
            "A10G",
            "A16",
            "A30",
            "A40",
            "A100",
            "L4",
            "L20",
            "L40",
            "L40S",
        ),
        *(
            "H20",
            "H100",
            "H200",
            "GH200",
            "B100",
            "B200",
            "B300",
            "GB200",
            "GB300",
            "RTX4090",
            "RTX5090",
            "RTX6000",
        ),
        *("MI210", "MI250", "MI250X", "MI300A", "MI300X", "MI325X", "MI350X", "MI355X"),
    )
)


class NameProblem(Failure):
    """A name does not follow the grammar; the message says what would."""


@dataclass(frozen=True)
class NamedHardware:
    """NODESxGPUSxGPU: 1x2xL40S is one node with two L40S."""

    name: str
    nodes: int
    gpus: int
    gpu: str


@dataclass(frozen=True)
class Declared:
    """Facts that a name declares, None for the others; `cpu_blocks` from the arm's suffix, `rate` in streams."""

    arm: str
    cpu_blocks: int | None = None
    mempress: bool = False
    hardware: str | None = None
    software: str | None = None
    model: str | None = None
    replicas: int | None = None
    rate: int | None = None


def parse_folder(name: str) -> Declared:
    """Return what a result folder's name declares. Raises NameProblem unless the whole name follows the grammar."""
    match = _FOLDER.fullmatch(name)
    if match is None:
        raise NameProblem(
            f"its name does not have the form {_WANTED}", code="other_form"
        )
    return _declared(match)


def parse_fields(name: str, models: Collection[str], arms: Collection[str]) -> Declared:
    """Return what a name declares that has some of a folder's fields, in their order, joined by `_`.

    The arm is required; hardware and software come together or not at all; models and arms must be known. Raises
    NameProblem.
    """
    match = re.fullmatch(
        rf"(?:{_HARDWARE}_{_SOFTWARE}_)?(?:{_alternatives('model', models)}_)?{_alternatives('arm', arms)}{_SIZE}"
        rf"(?:_replica{_REPLICAS})?(?:_rate{_RATE})?",
        name,
    )
    if match is None:
        known = f"arms {', '.join(sorted(arms))}; models {', '.join(sorted(models))}"
        raise NameProblem(
            f"{name!r} has no fields of {_WANTED} with a known arm ({known})",
            code="no_known_arm",
        )
    return _declared(match)


class NamePattern:
    """A pattern of the names of report files, such as `oct2025-{model}-{arm}.json` or `{arm}/benchmarks.json`.

    A pattern with `/` is matched against as many of a path's last parts. {model} and {arm} stand for known names,
    {software} for text without `_`, {hardware}, {replicas} and {rate} for these fields, {any} for text without `/`.
    Raises NameProblem for another placeholder, or without {arm}.
    """

    def __init__(
        self, pattern: str, models: Collection[str], arms: Collection[str]
    ) -> None:
        self.pattern = pattern
        # First with known names, then with any, to distinguish an unknown name from one of another form.
        self._expressions = [
            _pattern_regex(pattern, some_models, some_arms)
            for some_models, some_arms in (
                (models, arms),
                (models, None),
                (None, arms),
                (None, None),
            )
        ]

    def part(self, path: str) -> str | None:
        """Return the part of a path that matches the pattern, None if the path has another form."""
        part = "/".join(path.split("/")[-1 - self.pattern.count("/") :])
        return part if self._expressions[-1].fullmatch(part) else None

    def declared(self, part: str) -> Declared:
        """Return what a name declares, with known names where possible. Raises NameProblem for another form."""
        for expression in self._expressions:
            if (match := expression.fullmatch(part)) is not None:
                return _declared(match)
        raise NameProblem(
            f"{part!r} does not match the import's pattern {self.pattern!r}",
            code="other_pattern",
        )


def _pattern_regex(
    pattern: str, models: Collection[str] | None, arms: Collection[str] | None
) -> re.Pattern[str]:
    """Return a pattern as a regular expression; None for `models` or `arms` allows any name. Raises NameProblem."""
    kinds = {
        "model": _alternatives("model", models),
        "arm": f"{_alternatives('arm', arms)}{_SIZE}",
        "hardware": _HARDWARE,
        "software": _SOFTWARE,
        "replicas": _REPLICAS,
        "rate": _RATE,
        "any": "[^/]*?",
    }
    parts = re.split(r"\{(\w*)\}", pattern)
    placeholders = parts[1::2]
    wrong = [
        ("unknown_placeholder", name, "is not a placeholder")
        for name in sorted({*placeholders} - {*kinds})
    ]
    wrong += (
        [("placeholder_missing", "arm", "is missing")]
        if "arm" not in placeholders
        else []
    )
    counted = Counter(name for name in placeholders if name != "any")
    wrong += [
        ("placeholder_repeated", name, "is given twice")
        for name in kinds
        if counted[name] > 1
    ]
    for code, name, what in wrong[:1]:
        there = ", ".join(f"{{{known}}}" for known in kinds)
        raise NameProblem(
            f"{pattern!r}: {{{name}}} {what}; there are {there}",
            code=code,
            placeholder=name,
        )
    expression = "".join(
        kinds[part] if number % 2 else re.escape(part)
        for number, part in enumerate(parts)
    )
    # Reports may be compressed.
    return re.compile(rf"{expression}(?:\.zst){{0,3}}")


def parse_hardware(name: str, also: Collection[str] = ()) -> NamedHardware:
    """Return the parts of a hardware name; names in `also` are accepted in any form. Raises NameProblem."""
    match = re.fullmatch(_HARDWARE, name)
    if match is not None and (match["gpu"] in GPUS or name in also):
        return NamedHardware(
            name, int(match["nodes"]), int(match["gpus"]), match["gpu"]
        )
    if name in also:
        return NamedHardware(name, 1, 0, name)
    message = f"unknown hardware {name!r} (to accept it, give it under `hardware`)"
    raise NameProblem(message, code="unknown_hardware", hardware=name)


def _alternatives(name: str, known: Collection[str] | None) -> str:
    if known is None:
        return f"(?P<{name}>[^/]+?)"
    # Longest first, so that a name is not matched by a shorter one that it begins with.
    return f"(?P<{name}>{'|'.join(re.escape(entry) for entry in sorted(known, key=len, reverse=True)) or '(?!)'})"


def _declared(match: re.Match[str]) -> Declared:
    found = match.groupdict()
    size, replicas, rate = (
        int(found.get(name) or 0) or None for name in ("thousands", "replicas", "rate")
    )
    texts = {name: found.get(name) for name in ("hardware", "software", "model")}
    blocks, mempress = size and 1000 * size, found.get("mempress") is not None
    return Declared(
        found["arm"],
        cpu_blocks=blocks,
        mempress=mempress,
        replicas=replicas,
        rate=rate,
        **texts,
    )
