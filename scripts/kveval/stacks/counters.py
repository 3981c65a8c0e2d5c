"""A program's own counters, read from its Prometheus page."""

import difflib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kveval.host.errors import Failure

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

# Labels of a server's parts, and those that are the same on every series; a counter is summed over them.
_COMMON_LABELS = frozenset(
    {
        "engine",
        "engine_type",
        "model_name",
        "pid",
        "tp_rank",
        "pp_rank",
        "dp_rank",
        "moe_ep_rank",
        "otel_scope_name",
        "otel_scope_version",
        "otel_scope_schema_url",
    }
)


# Histograms of which the buckets are kept: the delays of lookups in tiers, which are needed over a level.
_KEPT_HISTOGRAM = re.compile(r"_lookup_\w*delay_seconds$")


class CounterError(Failure):
    """A program's metrics cannot be read."""


@dataclass(frozen=True)
class MetricSample:
    """One line of a Prometheus page: a value under a name and its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_samples(text: str) -> list[MetricSample]:
    """Return every line of the Prometheus text. Raises CounterError if it is none."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  (slow, not for plans)

    try:
        return [
            MetricSample(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]
    except ValueError as error:
        raise CounterError(
            f"not Prometheus text: {error}", code="not_prometheus"
        ) from error


def parse_counters(
    text: str, prefix: str, names: Collection[str] = ()
) -> dict[str, float]:
    """Sum every counter of the Prometheus text whose name starts with `prefix`, or is among `names`.

    A counter with further labels (transfer_type, source, ...) appears as a sum under its name, and once per label set
    as `name{label="value"}`. Names keep their suffix `_total`. Of histograms of lookups' delays, the buckets are there,
    each as `name_bucket{le="seconds"}` with further labels. Raises CounterError if it is not Prometheus text.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  (slow, not for plans)

    totals: dict[str, float] = defaultdict(float)
    bare = {_without_labels(name) for name in names}
    try:
        for family in text_string_to_metric_families(text):
            read = family.name.startswith(prefix) or f"{family.name}_total" in bare
            if not read or not _is_kept(family):
                continue
            for sample in family.samples:
                own = _own_labels(sample.labels)
                if sample.name.endswith("_total"):
                    totals[sample.name] += sample.value
                elif not sample.name.endswith("_bucket"):
                    continue
                if own:
                    totals[f"{sample.name}{{{own}}}"] += sample.value
    except ValueError as error:
        raise CounterError(
            f"not Prometheus text: {error}", code="not_prometheus"
        ) from error
    return dict(totals)


def _is_kept(family: "Metric") -> bool:
    if family.type == "histogram":
        return _KEPT_HISTOGRAM.search(family.name) is not None
    return family.type == "counter"


def _own_labels(labels: Mapping[str, str]) -> str:
    """Return the labels of a sample that distinguish it on one server, as they are written."""
    return ",".join(
        f'{name}="{value}"'
        for name, value in sorted(labels.items())
        if name not in _COMMON_LABELS
    )


def metric_types(text: str) -> dict[str, str]:
    """Return the type of every metric of the Prometheus text by its name there, also of those that have no value yet.

    A counter has its name with the suffix `_total`. Raises CounterError if it is not Prometheus text.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  (slow, not for plans)

    try:
        families = [*text_string_to_metric_families(text)]
    except ValueError as error:
        raise CounterError(
            f"not Prometheus text: {error}", code="not_prometheus"
        ) from error
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in families
    }


def unreadable(names: Collection[str], types: Mapping[str, str]) -> dict[str, str]:
    """Return those of the counters, with or without labels, that a page of metrics does not have, each with the reason.

    `types`: of the page's metrics, as `metric_types` returns them.
    """
    reasons = {}
    counters = [name for name, kind in types.items() if kind == "counter"]
    for name in names:
        bare = _without_labels(name)
        if types.get(bare) == "counter":
            continue
        near = difflib.get_close_matches(bare, counters, n=3, cutoff=0.5)
        reasons[name] = f"there is no metric {bare}"
        if bare in types:
            reasons[name] = f"{bare} is a {types[bare]}, no counter"
        if near:
            reasons[name] += f"; similar counters are {', '.join(near)}"
    return reasons


def _without_labels(name: str) -> str:
    return name.partition("{")[0]
