"""A probe of this host's copy bandwidth: the upper limit for loads and stores of a tier in host memory.

`probe` runs this file with the server's Python, whose torch makes the copies; the file imports nothing of kveval.
"""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Larger than the caches of CPUs.
_BUFFER_BYTES = 256 * 2**20
_SECONDS_EACH = 0.4
_LIMIT_S = 60.0


def probe(python: Path) -> dict[str, float]:
    """Return the highest copy bandwidths on the cores of this thread, GB/s (10^9 bytes copied per second).

    `host_gb_s`: from host memory to host memory; with CUDA also `host_to_device_gb_s` and `device_to_host_gb_s`,
    between pinned memory and the first GPU. Takes a second or two, without the import of torch; empty if the probe
    fails.
    """
    try:
        # Isolated, because this folder's http.py would hide Python's http.
        done = subprocess.run(
            [python, "-I", __file__],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
        rates = json.loads(done.stdout)
        return {str(name): float(rate) for name, rate in rates.items()}
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError):
        return {}


def best_gb_s(
    copy: Callable[[], object], size_bytes: int, seconds: float = _SECONDS_EACH
) -> float:
    """Return the rate of the fastest of the copies that fit into `seconds`, at least three; GB/s.

    The fastest, as in the STREAM benchmark: a slower copy was slowed down by something other than the memory.
    """
    times: list[float] = []
    end = time.perf_counter() + seconds
    # The first copy, untimed, touches the pages.
    copy()
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        copy()
        times.append(time.perf_counter() - begin)
    return size_bytes / min(times) / 1e9


def _rates(torch: Any) -> dict[str, float]:
    def buffer(**placed: Any) -> Any:
        return torch.ones(_BUFFER_BYTES, dtype=torch.int8, **placed)

    def rate(target: Any, source: Any) -> float:
        return best_gb_s(lambda: target.copy_(source), _BUFFER_BYTES)

    rates = {"host_gb_s": rate(buffer(), buffer())}
    if torch.cuda.is_available():
        pinned, device = buffer(pin_memory=True), buffer(device="cuda:0")

        def crossed(target: Any, source: Any) -> float:
            def copy() -> None:
                target.copy_(source, non_blocking=True)
                torch.cuda.synchronize()

            return best_gb_s(copy, _BUFFER_BYTES)

        rates |= {
            "host_to_device_gb_s": crossed(device, pinned),
            "device_to_host_gb_s": crossed(pinned, device),
        }
    return rates


if __name__ == "__main__":
    import torch

    print(json.dumps({name: round(rate, 3) for name, rate in _rates(torch).items()}))
