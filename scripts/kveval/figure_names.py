"""The names of the figures, apart from the drawing: a plan needs the names and should not load a plotting library."""

from collections.abc import Sequence

NAMES = (
    "peak_throughput_all_scenarios",
    "latency_comparison_all",
    "effect_plot",
    "pcp_kv_cache_usage",
    "pcp_prefix_cache_hits",
    "pcp_request_queues",
    "pcp_memory_usage",
)
_CURVE_PREFIX, _CURVE_SUFFIX = "throughput_curve_", "_all"


def figure_names(models: Sequence[str]) -> list[str]:
    """Return the names of all figures of a campaign with these models; a model named twice counts once."""
    return [*NAMES, *(f"{_CURVE_PREFIX}{model}{_CURVE_SUFFIX}" for model in dict.fromkeys(models))]


def curve_model(name: str) -> str | None:
    """Return the model whose throughput curve a figure's name asks for, None if it asks for something else."""
    if name.startswith(_CURVE_PREFIX) and name.endswith(_CURVE_SUFFIX):
        return name.removeprefix(_CURVE_PREFIX).removesuffix(_CURVE_SUFFIX)
    return None
