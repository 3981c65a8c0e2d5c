"""The facts that the name of an existing result declares, parsed by a grammar of whole fields.

A result folder is HARDWARE_SOFTWARE[-mempress]_MODEL_ARM[-10k|-20k|-20kcpu]_replicaN_rateC. Names of older results have
fewer fields; `parse_fields` accepts any of the fields in this order, with known models and arms only.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from kveval.host.errors import Failure

_HARDWARE = r"(?P<nodes>[1-9]\d*)x(?P<gpus>[1-9]\d*)x(?P<gpu>[A-Za-z0-9.+-]+)"
_SIZE = r"(?:-(?P<thousands>[1-9]\d*)k(?P<cpu>cpu)?)?"
_MEMPRESS = r"(?P<mempress>-mempress)?"
_FOLDER = re.compile(
    rf"(?P<hardware>{_HARDWARE})_(?P<software>[^_]+?){_MEMPRESS}_(?P<model>[^_]+)_(?P<arm>[^_]+?){_SIZE}"
    r"_replica(?P<replicas>[1-9]\d*)_rate(?P<rate>[1-9]\d*)"
)
_WANTED = "HARDWARE_SOFTWARE[-mempress]_MODEL_ARM[-10k]_replicaN_rateC"
# NVIDIA's and AMD's GPUs for inference; others have to be named in the import.
GPUS = frozenset(
    (
        *("T4", "V100", "A10", "A10G", "A16", "A30", "A40", "A100", "L4", "L20", "L40", "L40S"),
        *("H20", "H100", "H200", "GH200", "B100", "B200", "B300", "GB200", "GB300", "RTX4090", "RTX5090", "RTX6000"),
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
        raise NameProblem(f"its name does not have the form {_WANTED}", code="other_form")
    return _declared(match)


def parse_fields(name: str, models: Collection[str], arms: Collection[str]) -> Declared:
    """Return what a name declares that has some of a folder's fields, in their order, joined by `_`.

    The arm is required; hardware and software come together or not at all; models and arms must be known. Raises
    NameProblem.
    """
    match = _fields(models, arms).fullmatch(name)
    if match is None:
        known = f"arms {', '.join(sorted(arms))}; models {', '.join(sorted(models))}"
        raise NameProblem(f"{name!r} has no fields of {_WANTED} with a known arm ({known})", code="no_known_arm")
    return _declared(match)


class NamePattern:
    """A pattern of the names of report files, such as `oct2025-{model}-{arm}.json` or `{arm}/benchmarks.json`.

    A pattern with `/` is matched against as many of a path's last parts. {model} and {arm} stand for known names,
    {software} for text without `_`, {hardware}, {replicas} and {rate} for these fields, {any} for text without `/`.
    Raises NameProblem for another placeholder, or without {arm}.
    """

    def __init__(self, pattern: str, models: Collection[str], arms: Collection[str]) -> None:
        self.pattern = pattern
        # First with known names, then with any, to distinguish an unknown name from one of another form.
        self._expressions = [
            _pattern_regex(pattern, some_models, some_arms)
            for some_models, some_arms in ((models, arms), (models, None), (None, arms), (None, None))
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
        raise NameProblem(f"{part!r} does not match the import's pattern {self.pattern!r}", code="other_pattern")


def _pattern_regex(pattern: str, models: Collection[str] | None, arms: Collection[str] | None) -> re.Pattern[str]:
    """Return a pattern as a regular expression; None for `models` or `arms` allows any name. Raises NameProblem."""
    kinds = {
        "model": _alternatives("model", models),
        "arm": f"{_alternatives('arm', arms)}{_SIZE}",
        "hardware": f"(?P<hardware>{_HARDWARE})",
        "software": f"(?P<software>[^_/]+?){_MEMPRESS}",
        "replicas": r"(?P<replicas>[1-9]\d*)",
        "rate": r"(?P<rate>[1-9]\d*)",
        "any": "[^/]*?",
    }
    parts = re.split(r"\{(\w*)\}", pattern)
    placeholders = parts[1::2]
    unknown = sorted({name for name in placeholders if name not in kinds})
    if unknown or "arm" not in placeholders:
        wrong = f"{{{unknown[0]}}} is not a placeholder" if unknown else "{arm} is missing"
        there = ", ".join(f"{{{name}}}" for name in kinds)
        code, name = ("unknown_placeholder", unknown[0]) if unknown else ("placeholder_missing", "arm")
        raise NameProblem(f"{pattern!r}: {wrong}; there are {there}", code=code, placeholder=name)
    repeated = [name for name in kinds if name != "any" and placeholders.count(name) > 1]
    if repeated:
        said = f"{pattern!r}: {{{repeated[0]}}} is given twice"
        raise NameProblem(said, code="placeholder_repeated", placeholder=repeated[0])
    expression = "".join(kinds[part] if number % 2 else re.escape(part) for number, part in enumerate(parts))
    # Reports may be compressed.
    return re.compile(rf"{expression}(?:\.zst){{0,3}}")


def parse_hardware(name: str, also: Collection[str] = ()) -> NamedHardware:
    """Return the parts of a hardware name; names in `also` are accepted in any form. Raises NameProblem."""
    match = re.fullmatch(_HARDWARE, name)
    if match is not None and (match["gpu"] in GPUS or name in also):
        return NamedHardware(name, int(match["nodes"]), int(match["gpus"]), match["gpu"])
    if name in also:
        return NamedHardware(name, 1, 0, name)
    said = f"unknown hardware {name!r} (to accept it, give it under `hardware`)"
    raise NameProblem(said, code="unknown_hardware", hardware=name)


def _fields(models: Collection[str], arms: Collection[str]) -> re.Pattern[str]:
    return re.compile(
        rf"(?:(?P<hardware>{_HARDWARE})_(?P<software>[^_]+?){_MEMPRESS}_)?(?:{_alternatives('model', models)}_)?"
        rf"{_alternatives('arm', arms)}{_SIZE}(?:_replica(?P<replicas>[1-9]\d*))?(?:_rate(?P<rate>[1-9]\d*))?"
    )


def _alternatives(name: str, known: Collection[str] | None) -> str:
    if known is None:
        return f"(?P<{name}>[^/]+?)"
    # Longest first, so that a name is not matched by a shorter one that it begins with.
    return f"(?P<{name}>{'|'.join(re.escape(entry) for entry in sorted(known, key=len, reverse=True)) or '(?!)'})"


def _declared(match: re.Match[str]) -> Declared:
    found = match.groupdict()
    thousands, replicas, rate = (found.get(name) for name in ("thousands", "replicas", "rate"))
    return Declared(
        arm=str(found["arm"]),
        cpu_blocks=None if thousands is None else 1000 * int(thousands),
        mempress=found.get("mempress") is not None,
        hardware=found.get("hardware"),
        software=found.get("software"),
        model=found.get("model"),
        replicas=None if replicas is None else int(replicas),
        rate=None if rate is None else int(rate),
    )
