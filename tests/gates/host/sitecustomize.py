"""On PYTHONPATH: the library finds the made-up host of the fixture, whose runs are adopted by no other."""

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path.cwd() / "scripts"))
FACTS = {
    "cpu_model": "CPU of the gates",
    "cpus": 2,
    "memory_bytes": 8 * 2**30,
    "gpus": [],
    "kernel": "6.1.0",
}


def _probe() -> dict[str, Any]:
    return {**FACTS, "fingerprint": hardware.fingerprint(FACTS)}


try:
    from kveval.host import hardware
except ImportError:
    # A Python beside the workflow, in a folder or with packages of its own.
    pass
else:
    hardware.probe = _probe
