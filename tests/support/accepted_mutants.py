"""Mutants that no test has to notice, each with its reason: it changes nothing, or a value that is arbitrary."""

from collections.abc import Mapping

REASONS: Mapping[tuple[str, str, str], str] = {
    (
        "configuration/cell_checks.py",
        "in_flight = max(workloads.streams_at(workload, level) or 0 for level in levels)",
        "0 -> -1",
    ): "equivalent: without streams, less than any limit in both cases",
    (
        "curve/cells.py",
        "if serving.servers == 1:",
        "1 -> 0",
    ): "equivalent: for one server the general case gives the same, only later",
    (
        "curve/speed.py",
        'np.zeros(len(start)), covariance * 2.4**2 / len(start), _STEPS, method="eigh"',
        "2.4 -> 1.4",
    ): "arbitrary: how fast the walk converges, not where to",
    (
        "curve/speed.py",
        "return places[_STEPS // 4 :]",
        "4 -> 5",
    ): "arbitrary: how much of the walk's beginning is left out",
    (
        "store/lock.py",
        "if time.monotonic() >= deadline:",
        "time.monotonic() >= deadline -> time.monotonic() > deadline",
    ): "arbitrary: whether the wait ends at its last moment, or at the look after it",
    (
        "store/run_file.py",
        "class RequiredCounter(msgspec.Struct, frozen=True):",
        "True -> False",
    ): "equivalent: nothing changes one",
}
"""File below scripts/kveval, the line it is in, and the change -> why no test notices it."""
