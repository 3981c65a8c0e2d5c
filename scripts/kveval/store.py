"""The measurement store: what was measured, under the hash of what defines it, never changed afterwards.

Layout: `<store>/ID/run-N/` with run.json, raw/ and SHA256SUMS (sha256sum's format). A run measured on other
hardware than the one that holds `run-N` lies beside it as `run-N@FINGERPRINT`. Failed attempts are kept in
`<store>/failed/`, work in progress in `<store>/partial/`; neither is ever adopted.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.errors import Failure

SUMS = "SHA256SUMS"
RUN = "run.json"


class StoreError(Failure):
    """A stored measurement is damaged, incomplete or not what its place says."""


@dataclass(frozen=True)
class Key:
    """What a stored measurement is found by.

    The id of what defines it, the run's number, the hardware's fingerprint.
    """

    measurement: str
    run: int
    hardware: str


def sha256_file(path: Path) -> str:
    """Return the hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(directory: Path, key: Key, trusted: Collection[str] = ()) -> dict[str, Any]:
    """Check every file of a stored run against its checksum and its run.json against `key`; return run.json.

    `trusted` files were checked a moment ago and only have to be there. Raises StoreError naming the first thing that
    is wrong.
    """
    try:
        lines = (directory / SUMS).read_text().splitlines()
    except OSError as error:
        raise StoreError(f"{directory}: no readable {SUMS} ({error.strerror})") from error
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}
    if RUN not in listed:
        raise StoreError(f"{directory}: {SUMS} does not list {RUN}")
    for name, expected in listed.items():
        try:
            actual = expected if name in trusted and (directory / name).is_file() else sha256_file(directory / name)
        except OSError as error:
            raise StoreError(f"{directory / name}: listed in {SUMS}, but not readable ({error.strerror})") from error
        if actual != expected:
            raise StoreError(f"{directory / name}: checksum differs from {SUMS}")
    try:
        facts: dict[str, Any] = json.loads((directory / RUN).read_text())
        found = Key(facts["measurement"], facts["run"], facts["hardware"]["fingerprint"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{directory / RUN}: not a run's description ({error!r})") from error
    if found != key:
        raise StoreError(f"{directory}: holds {found}, expected {key}")
    return facts


class Store:
    """The store's folder, one per results tree."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _places(self, key: Key) -> tuple[Path, Path]:
        plain = self.root / key.measurement / f"run-{key.run}"
        return plain, plain.with_name(f"{plain.name}@{key.hardware}")

    def find(self, key: Key) -> Path | None:
        """Return the complete, verified run for `key`, or None.

        A damaged entry is set aside with its reason, so that the run is measured again and nothing is lost.
        """
        for place in self._places(key):
            if not place.exists():
                continue
            try:
                verify(place, key)
            except StoreError as error:
                if not _is_other_hardware(place, key):
                    self._set_aside(place, str(error))
                continue
            return place
        return None

    def scratch(self, key: Key) -> Path:
        """Make an empty folder, on the store's file system, for a run in progress."""
        place = self.root / "partial" / f"{key.measurement}-run-{key.run}-{os.getpid()}"
        shutil.rmtree(place, ignore_errors=True)
        (place / "raw").mkdir(parents=True)
        # Made now: a disk that is full later has no room for a folder.
        (self.root / "failed").mkdir(exist_ok=True)
        return place

    def partial(self) -> list[Path]:
        """List the folders of unfinished runs; under the host lock they are leftovers of killed ones."""
        return sorted(path for path in (self.root / "partial").glob("*") if path.is_dir())

    def commit(self, scratch: Path, key: Key, known: Mapping[str, str] | None = None) -> Path:
        """Seal a finished run - checksums, fsync, verification - and move it into place in one rename.

        `known`: checksums of files that were just computed. Return the place.
        """
        digests = dict(known or {})
        files = sorted(path for path in scratch.rglob("*") if path.is_file() and path.name != SUMS)
        names = {path.relative_to(scratch).as_posix(): path for path in files}
        sums = "".join(f"{digests.get(name) or sha256_file(path)}  {name}\n" for name, path in names.items())
        (scratch / SUMS).write_text(sums)
        for path in [*files, scratch / SUMS]:
            # What a link refers to is not ours to write.
            if not path.is_symlink():
                _fsync(path)
        verify(scratch, key, trusted=digests)
        plain, other = self._places(key)
        place = other if plain.exists() else plain
        place.parent.mkdir(parents=True, exist_ok=True)
        scratch.rename(place)
        _fsync(place.parent)
        return place

    def keep_failed(self, scratch: Path, key: Key) -> Path:
        """Move a failed attempt, as far as it got, to the failed ones; return where it lies now."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        place = self.root / "failed" / f"{key.measurement}-run-{key.run}-{stamp}-{os.getpid()}"
        try:
            scratch.rename(place)
        except OSError:
            return scratch
        return place

    def _set_aside(self, place: Path, reason: str) -> None:
        target = self.root / "damaged" / f"{place.parent.name}-{place.name}-{time.time_ns()}"
        target.parent.mkdir(parents=True, exist_ok=True)
        place.rename(target)
        (target / "REASON").write_text(reason + "\n")


def pointer(place: Path, key: Key) -> dict[str, Any]:
    """Describe a stored run for the workflow: id, run number, its path and the checksum over its checksums."""
    return {
        "measurement": key.measurement,
        "run": key.run,
        "path": place.as_posix(),
        "sha256": sha256_file(place / SUMS),
    }


def write_json(path: Path, content: object) -> None:
    """Write JSON so that readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _is_other_hardware(place: Path, key: Key) -> bool:
    """Tell a sound run of another machine from a damaged one."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, StoreError):
        fingerprint = json.loads((place / RUN).read_text())["hardware"]["fingerprint"]
        if fingerprint != key.hardware:
            verify(place, Key(key.measurement, key.run, fingerprint))
            return True
    return False


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
