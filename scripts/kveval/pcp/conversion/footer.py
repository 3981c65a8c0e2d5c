"""The Parquet file's description of itself: key-value metadata, one small JSON document per metric and domain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kveval.pcp.archive import meta as m
from kveval.pcp.archive.meta import Desc, Metadata
from kveval.pcp.archive.problems import ArchiveProblem
from kveval.pcp.archive.units import semantics_name, type_name, units_string
from kveval.pcp.archive.wire import IN_NULL
from kveval.pcp.conversion.catalog import Catalog

ARCHIVE_KEY = "kveval.pcp"
METRIC_KEY = "kveval.pcp.metric."
LABELS_KEY = "kveval.pcp.labels."

Labels = dict[str, Any]


@dataclass(frozen=True)
class MetricInfo:
    """Facts about one metric. `units` as PCP writes them, "" if dimensionless; `names` are all its names.

    `labels` are those of the metric (context, domain, instance domain, cluster and item merged, the most specific
    wins), as last recorded. `samples` counts the values in the archive, `not_converted` those that have no column
    (events, aggregates), `errors` the value sets that held an error instead of values, by PCP's error code.
    """

    name: str
    names: tuple[str, ...]
    pmid: str
    type: str
    semantics: str
    units: str
    indom: str | None
    help: str
    labels: Labels
    samples: int
    not_converted: int = 0
    errors: dict[str, int] = field(default_factory=dict)


def pmid_string(pmid: int) -> str:
    """domain.cluster.item, as PCP writes it."""
    return f"{pmid >> 22 & 0x1FF}.{pmid >> 10 & 0xFFF}.{pmid & 0x3FF}"


def indom_string(indom: int) -> str:
    """domain.serial, as PCP writes it."""
    return f"{indom >> 22 & 0x1FF}.{indom & 0x3FFFFF}"


def metric_info(metadata: Metadata, desc: Desc, samples: int, not_converted: int, errors: dict[str, int]) -> MetricInfo:
    """Everything that .meta says about a metric."""
    texts = metadata.texts.get((m.OF_PMID, desc.pmid), {})
    return MetricInfo(
        name=desc.names[0],
        names=desc.names,
        pmid=pmid_string(desc.pmid),
        type=type_name(desc.type),
        semantics=semantics_name(desc.semantics),
        units=units_string(desc.units),
        indom=None if desc.indom == m.INDOM_NULL else indom_string(desc.indom),
        help="\n".join(texts[kind] for kind in (m.ONELINE, m.HELP) if texts.get(kind)),
        labels=_metric_labels(metadata, desc),
        samples=samples,
        not_converted=not_converted,
        errors=errors,
    )


def _metric_labels(metadata: Metadata, desc: Desc) -> Labels:
    domain = desc.pmid >> 22 & 0x1FF
    keys = [(m.CONTEXT, None), (m.DOMAIN, domain), (m.INDOM_LABEL, desc.indom)]
    keys += [(m.CLUSTER, desc.pmid >> 10 & 0x7FFFF), (m.ITEM, desc.pmid)]
    merged: Labels = {}
    for kind, ident in keys:
        for (kind_found, ident_found), history in metadata.labels.items():
            if kind_found == kind and (ident is None or _same_ident(kind, ident_found, ident)):
                merged.update(_parse(history.current.get(IN_NULL, "")))
    return merged


def _same_ident(kind: int, found: int, wanted: int) -> bool:
    return found in (wanted, wanted << 10) if kind == m.CLUSTER else found == wanted


def _parse(text: str) -> Labels:
    labels = json.loads(text or "{}")
    return labels if isinstance(labels, dict) else {}


def instance_labels(metadata: Metadata, catalog: Catalog) -> dict[str, dict[str, list[tuple[int, Labels]]]]:
    """For each instance domain with labels: instance name -> [(valid from ns, labels), ...] in order of time."""
    found: dict[str, dict[str, list[tuple[int, Labels]]]] = {}
    for (kind, indom), history in metadata.labels.items():
        if kind == m.INSTANCES:
            names = found.setdefault(indom_string(indom), {})
            for time, instance, text in sorted(history.events):
                if (name := catalog.instance_name(indom, instance, time)) is not None:
                    names.setdefault(name, []).append((time, _parse(text)))
    return found


@dataclass
class ArchiveInfo:
    """Facts about the recording: hosts, zones, times in ns UTC, marks (interruptions), problems."""

    host: str
    hosts: list[str]
    timezone: str
    zoneinfo: str
    archives: list[dict[str, Any]]
    start_ns: int
    end_ns: int
    marks_ns: list[int]
    problems: list[ArchiveProblem]
    rows: int


def encode(
    info: ArchiveInfo,
    metrics: Mapping[str, MetricInfo],
    labels: Mapping[str, Mapping[str, list[tuple[int, Labels]]]],
) -> dict[str, str]:
    """The key-value metadata of the file."""
    entries = {ARCHIVE_KEY: json.dumps({"format": 1, **asdict(info)})}
    entries.update({METRIC_KEY + name: json.dumps(asdict(metric)) for name, metric in metrics.items()})
    entries.update({LABELS_KEY + indom: json.dumps(names) for indom, names in labels.items() if names})
    return entries


def decode_metric(text: str | bytes) -> MetricInfo:
    """One metric's entry."""
    fields = json.loads(text)
    return MetricInfo(**{**fields, "names": tuple(fields["names"])})


def decode_archive(text: str | bytes) -> ArchiveInfo:
    """The recording's entry."""
    fields = json.loads(text)
    del fields["format"]
    return ArchiveInfo(**{**fields, "problems": [ArchiveProblem(**problem) for problem in fields["problems"]]})
