"""Labels of metrics and of instances through time, with libpcp's precedence (pmLookupLabels(3))."""

from __future__ import annotations

from collections.abc import Iterable

from kveval.pcp.archive import meta as m
from kveval.pcp.archive.meta import Desc, Labels, Metadata
from kveval.pcp.archive.wire import IN_NULL, Label

LabelHistory = list[tuple[int, Labels]]
"""Labels with the times in ns from which they are valid, in order of time; the first apply to earlier times, too."""


def metric_labels(metadata: Metadata, label: Label, desc: Desc) -> LabelHistory:
    """Labels of a metric: those of context, domain, instance domain, cluster and item, the later ones win.

    `label` is the archive's: without recorded labels of the context, libpcp makes the host name a label.
    """
    keys = [(m.CONTEXT, IN_NULL), (m.DOMAIN, desc.pmid >> 22 & 0x1FF), (m.INDOM_LABEL, desc.indom)]
    keys += [(m.CLUSTER, desc.pmid & 0x7FFFFC00), (m.ITEM, desc.pmid)]
    levels = [metadata.labels.get(key, {}) for key in keys if key != (m.INDOM_LABEL, m.INDOM_NULL)]
    levels[0] = levels[0] or {label.start_ns: {IN_NULL: {"hostname": label.host}}}
    first = [min(level, default=label.start_ns) for level in levels]
    # A level is recorded together with the first of its metrics, so its first labels apply from the beginning.
    current = [level.get(time, {}).get(IN_NULL, {}) for level, time in zip(levels, first, strict=True)]
    history = [(min(first), _merged(current))]
    for time in sorted({time for level, begin in zip(levels, first, strict=True) for time in level if time > begin}):
        current = [level.get(time, {IN_NULL: now}).get(IN_NULL, {}) for level, now in zip(levels, current, strict=True)]
        if history[-1][1] != (merged := _merged(current)):
            history.append((time, merged))
    return history


def _merged(levels: Iterable[Labels]) -> Labels:
    return {name: value for labels in levels for name, value in labels.items()}


def instance_labels(metadata: Metadata, indoms: Iterable[int]) -> dict[int, dict[str, LabelHistory]]:
    """For each of the instance domains that has labels: the labels of its instances, by the instance's name."""
    return {
        indom: names
        for indom in indoms
        if (m.INSTANCES, indom) in metadata.labels and (names := _by_name(metadata, indom))
    }


def _by_name(metadata: Metadata, indom: int) -> dict[str, LabelHistory]:
    """The labels by instance name. They belong to instance numbers: a renamed one keeps its labels, as in libpcp."""
    records = metadata.labels[m.INSTANCES, indom]
    events = sorted(metadata.domains.get(indom, m.History()).events, key=lambda event: event[0])
    # Labels older than an instance's first name get that name, as values do.
    names = {instance: name for _, instance, name in reversed(events)}
    renamed: dict[int, dict[int, str]] = {}
    for time, instance, name in events:
        renamed.setdefault(time, {})[instance] = name
    labels: dict[int, Labels] = {}
    before: dict[str, Labels] = {}
    found: dict[str, LabelHistory] = {}
    for time in sorted({*records, *renamed}):
        changes = renamed.get(time, {})
        names.update(changes)
        known, labels = labels, records.get(time, labels)
        if labels is known and changes.keys().isdisjoint(labels):
            continue
        now = {names.get(instance, f"[{instance}]"): of_instance for instance, of_instance in labels.items()}
        for name in now | before:
            if (new := now.get(name, {})) != before.get(name, {}):
                found.setdefault(name, []).append((time, new))
        before = now
    return found
