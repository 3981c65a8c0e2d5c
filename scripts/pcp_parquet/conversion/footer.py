"""The Parquet file's description of itself: key-value metadata, as JSON; what grows with the metrics is compressed.

Labels through time have libpcp's precedence (pmLookupLabels(3)).
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import zstandard

from pcp_parquet.archive import meta as m
from pcp_parquet.archive.meta import Desc, Labels, Metadata
from pcp_parquet.archive.problems import ArchiveProblem
from pcp_parquet.archive.units import (
    indom_string,
    pmid_string,
    semantics_name,
    type_name,
    units_string,
)
from pcp_parquet.archive.wire import IN_NULL, Label

ARCHIVE_KEY = "kveval.pcp"
METRICS_KEY = "kveval.pcp.metrics"
LABELS_KEY = "kveval.pcp.labels"
FORMAT = 2

LabelHistory = list[tuple[int, Labels]]
"""Labels with the times in ns from which they are valid, in order of time; the first apply to earlier times, too."""

InstanceLabels = Mapping[str, Mapping[str, Mapping[str, LabelHistory]]]
"""Host -> instance domain -> instance name -> labels through time."""


@dataclass(frozen=True)
class MetricInfo:
    """Facts about one metric. `units` as PCP writes them, "" if dimensionless; `names` are all its names.

    `labels` are those of the metric (context, domain, instance domain, cluster and item merged, the most specific
    wins), as last recorded; `label_history` holds (host, valid from ns, labels). `samples` counts the values in the
    archive, `not_converted` those that have no column (events, aggregates), `errors` the value sets that held an error
    instead of values, by PCP's error code.
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
    label_history: list[tuple[str, int, Labels]] = field(default_factory=list)

    def labels_of(self, host: str) -> LabelHistory:
        """The labels of the metric through time on one of the recording's hosts."""
        history = [
            (time, labels)
            for of_host, time, labels in self.label_history
            if of_host == host
        ]
        return history or [(0, self.labels)]


def metric_info(
    metadata: Metadata,
    label: Label,
    desc: Desc,
    samples: int,
    not_converted: int,
    errors: dict[str, int],
) -> MetricInfo:
    """Everything that .meta says about a metric of the archive with this label."""
    history = metric_labels(metadata, label, desc)
    texts = metadata.texts.get((m.OF_PMID, desc.pmid), {})
    return MetricInfo(
        name=desc.names[0],
        names=desc.names,
        pmid=pmid_string(desc.pmid),
        type=type_name(desc.type),
        semantics=semantics_name(desc.semantics),
        units=units_string(desc.units),
        indom=None if desc.indom == m.INDOM_NULL else indom_string(desc.indom),
        help="\n".join(
            dict.fromkeys(
                texts[kind] for kind in (m.ONELINE, m.HELP) if texts.get(kind)
            )
        ),
        labels=history[-1][1],
        samples=samples,
        not_converted=not_converted,
        errors=errors,
        label_history=[(label.host, time, labels) for time, labels in history],
    )


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
    labels: InstanceLabels,
    time_unit: str,
) -> dict[str, str]:
    """The key-value metadata of the file; `time_unit` is that of its times, "us" or "ns"."""
    return {
        ARCHIVE_KEY: json.dumps(
            {"format": FORMAT, "time_unit": time_unit, **asdict(info)}
        ),
        METRICS_KEY: _packed(
            {name: asdict(metric) for name, metric in metrics.items()}
        ),
        LABELS_KEY: _packed(labels),
    }


def _packed(document: Mapping[str, Any]) -> str:
    """A JSON document, compressed by zstd, as base64: some Parquet readers accept only text as metadata."""
    return b64encode(zstandard.compress(json.dumps(document).encode())).decode()


def _unpacked(text: bytes) -> Any:
    return json.loads(zstandard.decompress(b64decode(text)))


@lru_cache(maxsize=8)
def decode_metrics(text: bytes) -> Mapping[str, MetricInfo]:
    """Every metric, sorted by name."""
    return {name: _metric(fields) for name, fields in sorted(_unpacked(text).items())}


def _metric(fields: dict[str, Any]) -> MetricInfo:
    history = [(host, time, labels) for host, time, labels in fields["label_history"]]
    return MetricInfo(
        **{**fields, "names": tuple(fields["names"]), "label_history": history}
    )


@lru_cache(maxsize=8)
def decode_labels(text: bytes) -> InstanceLabels:
    """The labels of the instances of every host."""
    labels: InstanceLabels = _unpacked(text)
    return labels


def decode_archive(text: bytes) -> ArchiveInfo:
    """Facts about the recording. ValueError if the file's format version is not FORMAT."""
    fields = json.loads(text)
    version, _ = fields.pop("format", None), fields.pop("time_unit", None)
    if version != FORMAT:
        raise ValueError(
            f"written in format {version} by another version; this one reads {FORMAT}: convert again"
        )
    return ArchiveInfo(
        **{
            **fields,
            "problems": [ArchiveProblem(**problem) for problem in fields["problems"]],
        }
    )


def metric_labels(metadata: Metadata, label: Label, desc: Desc) -> LabelHistory:
    """Labels of a metric: those of context, domain, instance domain, cluster and item, the later ones win.

    `label` is the archive's: without recorded labels of the context, libpcp makes the host name a label.
    """
    keys = [
        (m.CONTEXT, IN_NULL),
        (m.DOMAIN, desc.pmid >> 22 & 0x1FF),
        (m.INDOM_LABEL, desc.indom),
    ]
    keys += [(m.CLUSTER, desc.pmid & 0x7FFFFC00), (m.ITEM, desc.pmid)]
    levels = [
        metadata.labels.get(key, {})
        for key in keys
        if key != (m.INDOM_LABEL, m.INDOM_NULL)
    ]
    levels[0] = levels[0] or {label.start_ns: {IN_NULL: {"hostname": label.host}}}
    first = [min(level, default=label.start_ns) for level in levels]
    # A level is recorded together with the first of its metrics, so its first labels apply from the beginning.
    current = [
        level.get(time, {}).get(IN_NULL, {})
        for level, time in zip(levels, first, strict=True)
    ]
    history = [(min(first), _merged(current))]
    for time in sorted(
        {
            time
            for level, begin in zip(levels, first, strict=True)
            for time in level
            if time > begin
        }
    ):
        current = [
            level.get(time, {IN_NULL: now}).get(IN_NULL, {})
            for level, now in zip(levels, current, strict=True)
        ]
        if history[-1][1] != (merged := _merged(current)):
            history.append((time, merged))
    return history


def _merged(levels: Iterable[Labels]) -> Labels:
    return {name: value for labels in levels for name, value in labels.items()}


def instance_labels(
    metadata: Metadata, indoms: Iterable[int]
) -> dict[int, dict[str, LabelHistory]]:
    """For each of the instance domains that has labels: the labels of its instances, by the instance's name."""
    return {
        indom: names
        for indom in indoms
        if (m.INSTANCES, indom) in metadata.labels
        and (names := _by_name(metadata, indom))
    }


def _by_name(metadata: Metadata, indom: int) -> dict[str, LabelHistory]:
    """The labels by instance name. They belong to instance numbers: a renamed one keeps its labels, as in libpcp."""
    records = metadata.labels[m.INSTANCES, indom]
    events = sorted(
        metadata.domains.get(indom, m.History()).events, key=lambda event: event[0]
    )
    # Labels older than an instance's first name get that name, as values do.
    names = {instance: name for _, instance, name in reversed(events)}
    renamed: dict[int, dict[int, str]] = {}
    for time, instance, name in events:
        renamed.setdefault(time, {})[instance] = name
    labels: dict[int, Labels] = {}
    before: dict[str, Labels] = {}
    histories: dict[str, LabelHistory] = {}
    for time in sorted({*records, *renamed}):
        changes = renamed.get(time, {})
        names.update(changes)
        known, labels = labels, records.get(time, labels)
        if labels is known and changes.keys().isdisjoint(labels):
            continue
        now = {
            names.get(instance, f"[{instance}]"): of_instance
            for instance, of_instance in labels.items()
        }
        for name in now | before:
            if (new := now.get(name, {})) != before.get(name, {}):
                histories.setdefault(name, []).append((time, new))
        before = now
    return histories
