"""Selection of metrics and instances: pcp2arrow's metric specifications and instance patterns (pmrep(1))."""

from __future__ import annotations

import argparse
import csv
import os.path
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pcp_parquet.archive.compression import allowance, allowance_hint
from pcp_parquet.archive.meta import INDOM_NULL, Desc
from pcp_parquet.archive.units import COUNTER, STRING
from pcp_parquet.conversion.conversion import matches
from pcp_parquet.tool.domains import Inventory
from pcp_parquet.tool.samples import NATIVE
from pcp_parquet.tool.scaling import Scaling, scaling, unpacked

# A column takes several KiB of memory however few rows it has; `allowance` raises the bound.
COLUMNS = 200_000


@dataclass(frozen=True)
class MetricSpec:
    """One word of the command line: a name, the beginning of names, or a shell pattern."""

    pattern: str
    instances: tuple[str, ...] = ()
    units: str | None = None
    raw: bool = False
    limit: int | None = None

    def matches(self, name: str) -> bool:
        """Whether a metric of this name is selected."""
        return matches(name, self.pattern)


@dataclass(frozen=True)
class RequestedMetric:
    """A metric to be written: its name, and what is to be done with its values.

    `hidden` instances are only ranked. `limit` N keeps values of at least N, -N those of at most N; `rank` N keeps the
    N highest values at each time, -N the N lowest.
    """

    name: str
    desc: Desc
    scaling: Scaling
    rated: bool
    instances: tuple[str | None, ...]
    hidden: frozenset[str | None]
    limit: int = 0
    rank: int = 0


def parse_spec(text: str) -> MetricSpec:
    """`metric[,label[,instances[,unit[,type[,width[,precision[,limit]]]]]]]`; several instances in quotes.

    ValueError for a limit that is no number.
    """
    fields = next(csv.reader([text.replace("'", '"')])) + [""] * 8
    pattern, _, instances, units, kind, _, _, limit = (
        field.strip() for field in fields[:8]
    )
    names = tuple(name.strip() for name in instances.split(",") if name.strip())
    if limit and not re.fullmatch(r"-?\d+", limit):
        raise ValueError(f"{text}: the limit {limit!r} is not a whole number")
    return MetricSpec(
        pattern.rstrip("."),
        names,
        units or None,
        kind == "raw",
        int(limit) if limit else None,
    )


def requested_metrics(
    inventory: Inventory,
    options: argparse.Namespace,
    valued: dict[int, list[str | None]],
) -> list[RequestedMetric]:
    """The metrics that the command line asks for, in the order of its words, then in libpcp's.

    `valued` are the instances that have values, by PMID. Metrics whose values have no column (events, aggregates) are
    left out. ValueError for a specification that no metric matches, and for units of another dimension.
    """
    requested: dict[int, RequestedMetric] = {}
    columns = 0
    for spec in map(parse_spec, options.words or ["*"]):
        hits = [name for name in inventory.pmids if spec.matches(name)]
        if not hits:
            raise ValueError(
                f"no metric {spec.pattern!r} in the archive (--list shows those that it has)"
            )
        for name in hits:
            desc = inventory.descs[inventory.pmids[name]]
            if desc.pmid not in requested and desc.type in NATIVE:
                instances: list[str | None] = [None]
                if (domain := inventory.instances(desc)) is not None:
                    instances = list(
                        dict.fromkeys([*domain.names, *valued.get(desc.pmid, [])])
                    )
                if (
                    metric := _requested_metric(name, desc, spec, options, instances)
                ) is not None:
                    requested[desc.pmid] = metric
                    columns += len(metric.instances)
                    _require_few(columns)
    return list(requested.values())


def _require_few(columns: int) -> None:
    """ValueError if a table has more columns than can be written."""
    if columns > COLUMNS * allowance():
        size = f"more than {COLUMNS * allowance():,.0f} columns"
        remedy = "metrics by METRIC or instances by -i"
        raise ValueError(
            f"--wide would write {size}. Choose {remedy}; {allowance_hint()}"
        )


def _requested_metric(
    name: str,
    desc: Desc,
    spec: MetricSpec,
    options: argparse.Namespace,
    instances: Sequence[str | None],
) -> RequestedMetric | None:
    if desc.indom == INDOM_NULL and options.omit_flat:
        return None
    patterns = spec.instances or tuple(
        instance
        for text in options.instances or []
        for instance in parse_instances(text)
    )
    hidden: frozenset[str | None] = frozenset()
    if patterns and desc.indom != INDOM_NULL:
        chosen = chosen_instances(
            [instance for instance in instances if instance is not None], patterns
        )
        if not chosen:
            return None
        if options.invert_filter:
            hidden = frozenset(instances).difference(chosen)
        else:
            instances = chosen
    if desc.type == STRING:
        return RequestedMetric(name, desc, Scaling(), False, tuple(instances), hidden)
    counter, own = desc.semantics == COUNTER, unpacked(desc.units)
    # Units that were given for all metrics are for those of one dimension alone.
    of_dimension = {
        (1, 0, 0): options.space_scale,
        (0, 1, 0): options.time_scale,
        (0, 0, 1): options.count_scale,
    }
    units = spec.units or of_dimension.get((own.space, own.time, own.count))
    raw = options.raw or options.raw_prefer or spec.raw
    try:
        scaled = (
            Scaling()
            if options.raw and units is None
            else scaling(desc.units, counter=counter, raw=raw, target_units=units)
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if scaled.rate and not counter:
        raise ValueError(f"{name} is not a counter, so it has no rate ({units})")
    limit = options.limit_filter_force or spec.limit or options.limit_filter
    rated = counter and not options.raw
    return RequestedMetric(
        name, desc, scaled, rated, tuple(instances), hidden, limit, options.rank
    )


def parse_instances(text: str) -> tuple[str, ...]:
    """The instance patterns of a comma-separated list; quotes keep a comma within a name."""
    return tuple(
        part.strip("'\"")
        for part in next(csv.reader([text], skipinitialspace=True))
        if part
    )


def chosen_instances(names: Sequence[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """The instances that match the patterns: a number (of a process), a program's name, or a regular expression.

    ValueError for an expression that cannot be read.
    """
    chosen: dict[str, None] = {}
    for pattern in patterns:
        hits = [name for name in names if _by_number(pattern, name)]
        hits = hits[:1] or [name for name in names if _program(name) == pattern]
        if not hits:
            try:
                expression = re.compile(rf"\A(?:{pattern})\Z")
            except re.error as error:
                raise ValueError(
                    f"-i {pattern}: not a regular expression ({error})"
                ) from error
            hits = [name for name in names if expression.match(name)]
        chosen.update(dict.fromkeys(hits))
    return tuple(chosen)


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
