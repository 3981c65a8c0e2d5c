"""Selection of metrics and instances: pcp2arrow's metric specifications and instance patterns (pmrep(1))."""

from __future__ import annotations

import argparse
import csv
import os.path
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kveval.pcp.archive.meta import Desc
from kveval.pcp.archive.units import COUNTER, STRING
from kveval.pcp.conversion.conversion import matcher
from kveval.pcp.tool.samples import NATIVE
from kveval.pcp.tool.scaling import Scaling, scaling, unpacked


@dataclass(frozen=True)
class MetricSpec:
    """One word of the command line: a name, the beginning of names, or a shell pattern."""

    pattern: str
    instances: tuple[str, ...] = ()
    units: str | None = None
    raw: bool = False


@dataclass(frozen=True)
class Wanted:
    """A metric to be written, what is to be done with its values, and the patterns that its instances must match."""

    desc: Desc
    scaling: Scaling
    rated: bool
    patterns: tuple[str, ...]


def parse_spec(text: str) -> MetricSpec:
    """`metric[,label[,instances[,unit[,type]]]]`, of which the label is ignored; several instances in quotes."""
    fields = next(csv.reader([text.replace("'", '"')])) + [""] * 5
    pattern, _, instances, units, kind = (field.strip() for field in fields[:5])
    names = tuple(name.strip() for name in instances.split(",") if name.strip())
    return MetricSpec(pattern, names, units or None, kind == "raw")


def wanted_metrics(descs: Iterable[Desc], options: argparse.Namespace) -> list[Wanted]:
    """The metrics that the command line asks for, in the order of its words, then of their names.

    Metrics whose values have no column (events, aggregates) are left out. ValueError for units of another dimension.
    """
    found: dict[int, Wanted] = {}
    ordered = sorted(descs, key=lambda desc: desc.names[0])
    for spec in map(parse_spec, options.words or ["*"]):
        selected = matcher([spec.pattern])
        for desc in ordered:
            if desc.pmid not in found and desc.type in NATIVE and selected(desc):
                found[desc.pmid] = _wanted(desc, spec, options)
    return list(found.values())


def _wanted(desc: Desc, spec: MetricSpec, options: argparse.Namespace) -> Wanted:
    patterns = spec.instances or tuple(one for text in options.instances or [] for one in parse_instances(text))
    if desc.type == STRING:
        return Wanted(desc, Scaling(), False, patterns)
    name, counter, own = desc.names[0], desc.semantics == COUNTER, unpacked(desc.units)
    # Units that were given for all metrics are for those of one dimension alone.
    of_dimension = {(1, 0, 0): options.space_scale, (0, 1, 0): options.time_scale, (0, 0, 1): options.count_scale}
    units = spec.units or of_dimension.get((own.space, own.time, own.count))
    raw = options.raw or options.raw_prefer or spec.raw
    try:
        scaled = (
            Scaling() if options.raw and units is None else scaling(desc.units, counter=counter, raw=raw, wanted=units)
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if scaled.rate and not counter:
        raise ValueError(f"{name} is not a counter, so it has no rate ({units})")
    return Wanted(desc, scaled, counter and not options.raw, patterns)


def parse_instances(text: str) -> tuple[str, ...]:
    """The instance patterns of a comma-separated list; quotes keep a comma within a name."""
    return tuple(part.strip("'\"") for part in next(csv.reader([text], skipinitialspace=True)) if part)


def chosen_instances(names: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """The instances that match the patterns: a number (of a process), a program's name, or a regular expression.

    ValueError for an expression that cannot be read.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        hits = [name for name in names if _by_number(pattern, name)]
        hits = hits[:1] or [name for name in names if _program(name) == pattern]
        if not hits:
            try:
                expression = re.compile(rf"\A(?:{pattern})\Z")
            except re.error as error:
                raise ValueError(f"-i {pattern}: not a regular expression ({error})") from error
            hits = [name for name in names if expression.match(name)]
        found.update(dict.fromkeys(hits))
    return tuple(found)


def _by_number(pattern: str, name: str) -> bool:
    first = name.split(maxsplit=1)[0] if name.split() else ""
    return pattern.isdigit() and first.isdigit() and int(pattern) == int(first)


def _program(name: str) -> str | None:
    """The program of a process' instance ("001234 /usr/sbin/sshd"), None for other instances."""
    parts = name.split()
    if len(parts) < 2 or not parts[0].isdigit():
        return None
    if parts[1].startswith("("):
        return parts[1][1:-1]
    return os.path.basename(parts[1].removeprefix("-").removesuffix(":"))  # noqa: PTH119 (no path of this machine)
