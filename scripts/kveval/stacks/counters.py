"""A program's own counters, read from its Prometheus page."""

from collections import defaultdict
from collections.abc import Mapping
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


def parse_counters(text: str, prefix: str) -> dict[str, float]:
    """Sum every counter of the Prometheus text whose name starts with `prefix`.

    A counter with further labels (transfer_type, source, ...) appears as a sum under its name, and once per label set
    as `name{label="value"}`. Names keep their suffix `_total`. Raises CounterError if it is not Prometheus text.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  (slow, not for plans)

    totals: dict[str, float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(text):
            if family.type != "counter" or not family.name.startswith(prefix):
                continue
            for sample in family.samples:
                if not sample.name.endswith("_total"):
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
