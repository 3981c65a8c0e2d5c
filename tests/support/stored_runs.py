"""Runs for a store: small, with everything that the store itself looks at."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.configuration.config import measurement_id
from kveval.host import hardware
from kveval.host.files import write_json
from kveval.store.store import Key, Store, pointer

KEY = Key("0123456789abcdef", 2, "aaaa")
HOST = hardware.probe()
CELL = {"model": "Qwen3-0.6B", "scenario": "no-offload", "cpu_blocks": 0}


def filled(folder: Path, key: Key = KEY, payload: bytes = b"archive") -> Path:
    """Put a run's files into a folder."""
    (folder / "raw" / "pcp.tar.zst").write_bytes(payload)
    write_json(
        folder / "run.json",
        {
            "measurement": key.measurement,
            "run": key.run,
            "hardware": {"fingerprint": key.hardware},
        },
    )
    return folder


def finished(store: Store, key: Key = KEY, payload: bytes = b"archive") -> Path:
    """Make a finished run, not yet sealed, and return its folder."""
    return filled(store.scratch(key), key, payload)


def described(
    specification: Mapping[str, Any],
    run: int,
    host: Mapping[str, Any] = HOST,
    **changes: Any,
) -> dict[str, Any]:
    """Return a whole run.json of what a specification defines."""
    return {
        "schema": 1,
        "measurement": measurement_id(specification),
        "run": run,
        "cell": dict(specification["cell"]),
        "specification": dict(specification),
        "engine": "local",
        "weights": "miniature",
        "started": "2026-03-01T00:00:00Z",
        "finished": "2026-03-01T00:10:00Z",
        "hardware": dict(host),
        "levels": [
            {"level": 2, "status": "ok", "report": "raw/guidellm-0002.json.zst"}
        ],
        **changes,
    }


def measured(
    store: Store,
    specification: Mapping[str, Any],
    run: int = 1,
    *,
    payload: bytes = b"report",
    host: Mapping[str, Any] = HOST,
    **changes: Any,
) -> Path:
    """Put a whole run into a store; `changes` to its run.json. Return its place."""
    facts = described(specification, run, host, **changes)
    key = Key(facts["measurement"], facts["run"], facts["hardware"]["fingerprint"])
    scratch = store.scratch(key)
    (scratch / "raw" / "guidellm-0002.json.zst").write_bytes(payload)
    (scratch / "raw" / "pcp.tar.zst").write_bytes(b"archive")
    write_json(scratch / "run.json", facts)
    return store.commit(scratch, key)


def pointed(
    results: Path, place: Path, specification: Mapping[str, Any], run: int = 1
) -> Path:
    """Point to a stored run as the workflow does; return the pointer."""
    path = results.joinpath(
        *map(str, specification["cell"].values()), f"run-{run}", "measurement.json"
    )
    write_json(path, pointer(place, Key(measurement_id(specification), run, "")))
    return path
