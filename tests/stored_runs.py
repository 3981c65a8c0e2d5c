"""Runs for a store: small, with everything that the store itself looks at."""

from pathlib import Path

from kveval.store import Key, Store, write_json

KEY = Key("0123456789abcdef", 2, "aaaa")


def filled(folder: Path, key: Key = KEY, payload: bytes = b"archive") -> Path:
    """Put a run's files into a folder."""
    (folder / "raw" / "pcp.tar.zst").write_bytes(payload)
    write_json(
        folder / "run.json",
        {"measurement": key.measurement, "run": key.run, "hardware": {"fingerprint": key.hardware}},
    )
    return folder


def finished(store: Store, key: Key = KEY, payload: bytes = b"archive") -> Path:
    """Make a finished run, not yet sealed, and return its folder."""
    return filled(store.scratch(key), key, payload)
