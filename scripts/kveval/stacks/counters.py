"""A program's own counters, read from its Prometheus page."""

import difflib
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kveval.host.errors import Failure

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
    as `name{label="value"}`. Names keep their suffix `_total`. Raises CounterError if it is not Prometheus text.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  (slow, not for plans)

    totals: dict[str, float] = defaultdict(float)
    bare = {_without_labels(name) for name in names}
    try:
        for family in text_string_to_metric_families(text):
            if family.type != "counter":
                continue
            read = family.name.startswith(prefix) or f"{family.name}_total" in bare
            for sample in family.samples:
                if not read or not sample.name.endswith("_total"):
                    continue
                totals[sample.name] += sample.value
                own = {
                    name: value
                    for name, value in sorted(sample.labels.items())
                    if name not in _COMMON_LABELS
                }
                if own:
                    labels = ",".join(
                        f'{name}="{value}"' for name, value in own.items()
                    )
                    totals[f"{sample.name}{{{labels}}}"] += sample.value
    except ValueError as error:
        raise CounterError(
            f"not Prometheus text: {error}", code="not_prometheus"
        ) from error
    return dict(totals)


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
