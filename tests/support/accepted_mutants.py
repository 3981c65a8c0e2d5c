"""Mutants that no test has to notice, each with its reason: it changes nothing, or a value that is arbitrary."""

from collections.abc import Mapping

REASONS: Mapping[tuple[str, str, str], str] = {
    (
        "verdict/inputs.py",
        'if np.isnan(preempted).any() and (numbers(rows, "offload_load_bytes") > 0).any():',
        "0 -> 1",
    ): "equivalent: what is loaded are blocks, of more than a byte",
    (
        "verdict/inputs.py",
        'or not (numbers((*sides.arm, *sides.reference), "rate_req_s") > 0).all()',
        "0 -> -1",
    ): "equivalent: a rate is unknown or above 0",
    (
        "configuration/cell_checks.py",
        "in_flight = max(workloads.streams_at(workload, level) or 0 for level in levels)",
        "0 -> -1",
    ): "equivalent: without streams, less than any limit in both cases",
    (
        "configuration/deployment.py",
        "_SHM_BYTES = 2 * GIB",
        "2 -> 3",
    ): "arbitrary: how much more shared memory than the tier a pod gets",
    (
        "configuration/warnings.py",
        "if base is not None and not base.cpu_blocks and found[0].caches.tier:",
        "0 -> -1",
    ): "equivalent: a cell has the same caches at all of its levels",
    (
        "plugins/curve/simulation/cells.py",
        "if serving.servers == 1:",
        "1 -> 0",
    ): "equivalent: for one server the general case gives the same, only later",
    (
        "plugins/curve/simulation/curve.py",
        "return self.share(0)",
        "0 -> -1",
    ): "equivalent: no cache is smaller than none",
    (
        "plugins/curve/simulation/distances.py",
        "for bit in range(int(values.max()).bit_length() - 1, -1, -1):",
        "int(values.max()).bit_length() - 1 -> int(values.max()).bit_length() + 1",
    ): "equivalent: the further bits are unset in all values",
    (
        "plugins/curve/simulation/service.py",
        "if seconds > 0:",
        "seconds > 0 -> seconds >= 0",
    ): "equivalent: no batch and no wait takes no time",
    (
        "plugins/curve/simulation/speed.py",
        'np.zeros(len(start)), covariance * 2.4**2 / len(start), _STEPS, method="eigh"',
        "2.4 -> 1.4",
    ): "arbitrary: how fast the walk converges, not where to",
    (
        "plugins/curve/simulation/speed.py",
        "return places[_STEPS // 4 :]",
        "4 -> 5",
    ): "arbitrary: how much of the walk's beginning is left out",
    (
        "plugins/curve/simulation/speed.py",
        "if len(ordered) < _PARTS:",
        "len(ordered) < _PARTS -> len(ordered) <= _PARTS",
    ): "arbitrary: whether as many values as parts are taken as they are, or as quantiles",
    (
        "store/lock.py",
        "root: Path, *, exclusive: bool, patience_s: float = 60.0",
        "60.0 -> 59.0",
    ): "arbitrary: how long a wait is",
    (
        "store/lock.py",
        "if time.monotonic() >= deadline:",
        "time.monotonic() >= deadline -> time.monotonic() > deadline",
    ): "arbitrary: whether the wait ends at its last moment, or at the look after it",
}
"""File below scripts/kveval, the line it is in, and the change -> why no test notices it."""
