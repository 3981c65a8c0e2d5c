"""The measurement store: what was measured, under the hash of what defines it, never changed afterwards.

Layout: `<store>/ID/run-N/` with run.json, raw/ and SHA256SUMS (sha256sum's format), which is written last. A run of
other hardware than the one in `run-N`, or of another stack that ran already, lies beside it as `run-N@FINGERPRINT`, one
of the same hardware that was measured elsewhere at the same time as `run-N@FINGERPRINT-2`. Failed attempts are kept in
`failed/`, damaged entries in `damaged/`, work in progress in `partial/`; none of them is ever adopted. docs/store.md
says how a store is checked, tidied and shared.
"""

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kveval.host.errors import FileFailure
from kveval.host.files import (
    clock_s,
    last_change_s,
    make_folder,
    make_last,
    sha256_file,
    share,
    write_text,
)
from kveval.store.lock import abandoned, hold, owner, store_lock

SUMS = "SHA256SUMS"
RUN = "run.json"
REASON = "REASON"
PARTIAL, FAILED, DAMAGED = "partial", "failed", "damaged"
SETTLED_S = 300.0
"""An entry that changed within these seconds may be on its way: nothing is concluded from what it lacks."""

Defect = Literal[
    "unsealed", "missing", "differs", "wrong", "unreadable", "original missing"
]


class StoreError(FileFailure):
    """A stored measurement is damaged, incomplete or not what its place says.

    `defect`: no checksums yet, a file missing, a file that differs, run.json not what it should be, a file that this
    user or host cannot read, an import whose original is gone. `path`: the file, where the place is its folder. The
    code is the defect where none is given.
    """

    def __init__(
        self,
        place: Path,
        problem: str,
        defect: Defect,
        code: str = "",
        *,
        path: Path | None = None,
    ) -> None:
        super().__init__(place, problem, code=code or defect.replace(" ", "_"))
        self.defect = defect
        self.path = path or place


@dataclass(frozen=True)
class Key:
    """The key by which a stored measurement is found.

    The id of what defines it, the run's number, the hardware's fingerprint.
    """

    measurement: str
    run: int
    hardware: str

    def __str__(self) -> str:
        return f"run {self.run} of measurement {self.measurement} on hardware {self.hardware}"


def listed(directory: Path) -> dict[str, str]:
    """Return name -> checksum of the files that a stored run consists of. Raises StoreError without a list."""
    path = directory / SUMS
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        defect: Defect = (
            "unsealed"
            if isinstance(error, FileNotFoundError | NotADirectoryError)
            else "unreadable"
        )
        problem = f"no readable {SUMS} ({error.strerror})"
        raise StoreError(directory, problem, defect, path=path) from error
    except UnicodeDecodeError as error:
        raise StoreError(
            path, "not a list of checksums", "differs", "no_checksums"
        ) from error
    pairs = [line.partition("  ") for line in lines]
    digests = {name: digest for digest, _, name in pairs if name}
    if RUN not in digests:
        problem = f"{SUMS} does not list {RUN}"
        raise StoreError(directory, problem, "differs", "run_unlisted", path=path)
    return digests


def verify_file(directory: Path, name: str, expected: str) -> None:
    """Check one file of a stored run against its checksum. Raises StoreError."""
    path = directory / name
    try:
        if sha256_file(path) != expected:
            raise StoreError(path, f"checksum differs from {SUMS}", "differs")
    except OSError as error:
        defect: Defect = "unreadable"
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            defect = "original missing" if path.is_symlink() else "missing"
        problem = f"listed in {SUMS}, but not readable ({error.strerror})"
        raise StoreError(path, problem, defect) from error


def verify(directory: Path, key: Key, trusted: Collection[str] = ()) -> dict[str, Any]:
    """Check every file of a stored run against its checksum and its run.json against `key`; return run.json.

    `trusted` files were checked a moment ago and only have to be there. Raises StoreError naming the first thing that
    is wrong.
    """
    for name, expected in listed(directory).items():
        if name not in trusted or not (directory / name).is_file():
            verify_file(directory, name, expected)
    facts: dict[str, Any]
    try:
        facts = json.loads((directory / RUN).read_text())
        recorded = key_of(facts)
    except (ValueError, KeyError, TypeError) as error:
        problem = f"not a run's description ({error!r})"
        raise StoreError(directory / RUN, problem, "wrong", "no_description") from error
    if recorded != key:
        problem = f"holds {recorded}, expected {key}"
        path = directory / RUN
        raise StoreError(directory, problem, "wrong", "other_run", path=path)
    return facts


def key_of(facts: Mapping[str, Any]) -> Key:
    """Return what a run's description says it is. Raises KeyError or TypeError when it does not say."""
    return Key(facts["measurement"], facts["run"], facts["hardware"]["fingerprint"])


class Store:
    """The store's folder, one per result tree or one for many: several users and hosts may use it at once."""

    def __init__(self, root: Path, settled_s: float = SETTLED_S) -> None:
        self.root = root
        self.settled_s = settled_s
        self._held: dict[Path, int] = {}

    def no_deletions(self) -> contextlib.AbstractContextManager[None]:
        """Keep anyone from deleting between finding an entry and pointing to it. Raises StoreInUse."""
        return store_lock(self.root, exclusive=False)

    def find(
        self, key: Key, accept: Callable[[Path], bool] = lambda place: True
    ) -> Path | None:
        """Return the first complete, verified run for `key` that `accept` agrees to, or None.

        A damaged entry is set aside with its reason, so that the run is measured again and nothing is lost; one that is
        still arriving is left alone; and one that was sealed when its job was killed is moved into place. Raises
        StoreError when an entry is there that this user or host cannot read: measuring it again for hours is no remedy.
        """
        for place in self._places(key):
            if _recorded_hardware(place) not in (key.hardware, None):
                continue
            try:
                verify(place, key)
            except StoreError as error:
                if error.defect == "unreadable":
                    raise
                if not self.arriving(place, error):
                    self.set_aside(place, str(error))
                continue
            if accept(place):
                return place
        recovered = self._recovered(key)
        return recovered if recovered is not None and accept(recovered) else None

    def arriving(self, place: Path, error: StoreError) -> bool:
        """Tell whether an entry may lack files because it is still being copied here.

        Without checksums it is: they come last. With them (a copy in another order) it may be as long as it changes.
        The original of an import is elsewhere, and can only come back.
        """
        if error.defect in ("unsealed", "original missing"):
            return True
        if error.defect not in ("missing", "differs") or error.path.is_symlink():
            return False
        return clock_s(self.root) - last_change_s(place) < self.settled_s

    def scratch(self, key: Key) -> Path:
        """Make an empty folder, on the store's file system, for a run in progress."""
        self.root.mkdir(parents=True, exist_ok=True)
        place = self.root / PARTIAL / f"{key.measurement}-run-{key.run}-{owner()}"
        shutil.rmtree(place, ignore_errors=True)
        make_folder(place.parent, self.root)
        (place / "raw").mkdir(parents=True)
        self._held[place.absolute()] = hold(place)
        # Made now: a disk that is full later has no room for a folder.
        make_folder(self.root / FAILED, self.root)
        return place

    def partial(self) -> list[Path]:
        """List the folders of unfinished runs that nobody will finish: their process, one of this host, is gone."""
        return sorted(
            path
            for path in (self.root / PARTIAL).glob("*")
            if path.is_dir() and abandoned(path)
        )

    def commit(
        self,
        scratch: Path,
        key: Key,
        known: Mapping[str, str] | None = None,
        accept: Callable[[Path], bool] = lambda place: True,
    ) -> Path:
        """Seal a finished run - checksums, fsync, verification - and move it into place in one rename.

        `known`: checksums of files that were just computed. Return the place; or, if another host has stored an
        equal key first, and `accept` agrees to it, the place of that one, beside which the run then lies.
        """
        digests = dict(known or {})
        files = sorted(
            path for path in scratch.rglob("*") if path.is_file() and path.name != SUMS
        )
        names = {path.relative_to(scratch).as_posix(): path for path in files}
        sums = "".join(
            f"{digests.get(name) or sha256_file(path)}  {name}\n"
            for name, path in names.items()
        )
        share(scratch, self.root)
        # The checksums mark a run as complete: everything else has to be on the disk before them.
        make_last(
            [
                *files,
                *(
                    path
                    for path in scratch.rglob("*")
                    if path.is_dir() and not path.is_symlink()
                ),
            ]
        )
        write_text(scratch / SUMS, sums)
        share(scratch / SUMS, self.root)
        make_last([scratch])
        verify(scratch, key, trusted=digests)
        place = self._settle(scratch, key, accept)
        self._let_go(scratch)
        return place

    def keep_failed(self, scratch: Path, key: Key) -> Path:
        """Move a failed attempt, as far as it got, to the failed ones; return where it lies now."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        place = (
            self.root
            / FAILED
            / f"{key.measurement}-run-{key.run}-{stamp}-{os.getpid()}"
        )
        try:
            share(scratch, self.root)
            scratch.rename(place)
        except OSError:
            return scratch
        self._let_go(scratch)
        return place

    def set_aside(self, place: Path, reason: str) -> Path | None:
        """Move a damaged entry, with its reason, to the damaged ones; None where this user may not."""
        stem = "-".join(place.relative_to(self.root).parts)
        with contextlib.suppress(OSError):
            write_text(place / REASON, reason + "\n")
        with contextlib.suppress(OSError):
            make_folder(self.root / DAMAGED, self.root)
            for number in itertools.count(time.time_ns()):
                target = self.root / DAMAGED / f"{stem}-{number}"
                if not target.exists():
                    place.rename(target)
                    return target
        return None

    def move_into_place(self, folder: Path, key: Key) -> Path:
        """Verify a sealed run that lies elsewhere on the store's file system and move it into place; see `commit`."""
        verify(folder, key)
        share(folder, self.root)
        return self._settle(folder, key)

    def _places(self, key: Key) -> list[Path]:
        """The entries that may hold the run, in the order in which they came."""
        names = re.compile(rf"run-{key.run}(@{re.escape(key.hardware)}(-[0-9]+)?)?")
        try:
            places = [
                path
                for path in (self.root / key.measurement).iterdir()
                if names.fullmatch(path.name)
            ]
        except OSError:
            return []
        return sorted(places, key=lambda path: (len(path.name), path.name))

    def _settle(
        self,
        folder: Path,
        key: Key,
        accept: Callable[[Path], bool] = lambda place: True,
    ) -> Path:
        """Move a sealed, verified run to the first place that is free.

        Two hosts may do so at once: a rename onto an entry that is there fails, and so tells who was first.
        """
        sums = sha256_file(folder / SUMS)
        for place in _free_places(self.root / key.measurement, key):
            if place.exists() or place.is_symlink():
                if _same(place, sums, key):
                    shutil.rmtree(folder)
                    return place
                continue
            if not self._moved(folder, place, sums):
                continue
            if "@" not in place.name:
                return place
            with contextlib.suppress(StoreError):
                return self.find(key, accept) or place
            return place
        raise AssertionError("unreachable: there is always a next place")

    def _moved(self, folder: Path, place: Path, sums: str) -> bool:
        """Move `folder` to `place`; False when something has come there meanwhile."""
        for _ in range(10):
            make_folder(place.parent, self.root)
            try:
                folder.rename(place)
            except FileNotFoundError as error:
                if folder.exists():
                    # Someone deleted the id's last entry, and its folder with it.
                    continue
                # A file server may have done it twice: the second time, nothing is there any more.
                if (place / SUMS).exists() and sha256_file(place / SUMS) == sums:
                    break
                raise StoreError(
                    folder, "gone before it was in place", "missing"
                ) from error
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    return False
                raise
            break
        make_last([place.parent, self.root])
        return True

    def _recovered(self, key: Key) -> Path | None:
        """Move a run into place that was complete and sealed when its job was killed."""
        for folder in self.partial():
            if folder.name.startswith(
                f"{key.measurement}-run-{key.run}-"
            ) and not extra_files(folder):
                with contextlib.suppress(StoreError):
                    return self.move_into_place(folder, key)
        return None

    def _let_go(self, scratch: Path) -> None:
        with contextlib.suppress(KeyError):
            os.close(self._held.pop(scratch.absolute()))


def extra_files(directory: Path) -> list[str]:
    """List the files of an entry that its checksums do not cover; all of them if there are no checksums."""
    try:
        covered = listed(directory).keys() | {SUMS}
    except StoreError:
        covered = set()
    names = (
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if not path.is_dir()
    )
    return sorted(name for name in names if name not in covered)


def pointer(place: Path, key: Key) -> dict[str, Any]:
    """Describe a stored run for the workflow: id, run number, its path and the checksum over its checksums."""
    return {
        "measurement": key.measurement,
        "run": key.run,
        "path": place.as_posix(),
        "sha256": sha256_file(place / SUMS),
    }


def _free_places(folder: Path, key: Key) -> Iterator[Path]:
    yield folder / f"run-{key.run}"
    own = folder / f"run-{key.run}@{key.hardware}"
    yield own
    for number in itertools.count(2):
        yield own.with_name(f"{own.name}-{number}")


def _same(place: Path, sums: str, key: Key) -> bool:
    """Tell whether an entry is sound and is the run whose list of checksums has the checksum `sums`."""
    try:
        if sha256_file(place / SUMS) != sums:
            return False
        verify(place, key)
    except (OSError, StoreError):
        return False
    return True


def _recorded_hardware(place: Path) -> str | None:
    """Return the fingerprint that a run's description has, None when that cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((place / RUN).read_text())["hardware"]["fingerprint"])
    return None
