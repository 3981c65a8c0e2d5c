"""Who is using a store: the owner of a run in progress, and the lock between adopting and deleting.

A store may be on a file system that several hosts share, and not every such file system has locks. So nothing rests on
a lock alone: runs are put in place by renames, a run in progress has its owner in its name, and what is to be deleted
is first moved away and checked again.
"""

import contextlib
import errno
import fcntl
import os
import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path

from kveval.host.errors import Failure
from kveval.host.sessions import process_start

LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
_OWNER = re.compile(r"^.+-run-[0-9]+-(?P<host>.+)-(?P<pid>[0-9]+)-(?P<start>[0-9]+)$")


class StoreInUse(Failure):
    """Others are using the store, so nothing may be deleted from it now."""


def owner() -> str:
    """Return a name that identifies this process among those of all hosts, for its run in progress."""
    return f"{_host()}-{os.getpid()}-{process_start(os.getpid())}"


def abandoned(folder: Path) -> bool:
    """Tell whether a run in progress was abandoned: its process, on this host, no longer exists.

    Another host's processes cannot be seen from here, so theirs never count as abandoned.
    """
    named = _OWNER.match(folder.name)
    if named is None or named["host"] != _host():
        return False
    if str(process_start(int(named["pid"]))) == named["start"]:
        return False
    # A container may have the host's name, and processes that cannot be seen from here; the kernel's locks can.
    return not _locked(folder)


def hold(folder: Path) -> int:
    """Lock a folder for as long as this process lives or until the descriptor that is returned is closed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


@contextlib.contextmanager
def store_lock(
    root: Path, *, exclusive: bool, patience_s: float = 60.0
) -> Iterator[None]:
    """Hold the store's lock: shared by those who adopt, exclusive for whoever deletes.

    Raises StoreInUse when it is not free within `patience_s`. Goes on without a lock if the file system has none, or
    if this user may not write.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        yield
        return
    with contextlib.suppress(OSError):
        (root / LOCK).chmod(root.stat().st_mode & 0o666)
    try:
        _wait(
            descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, root, patience_s
        )
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int, kind: int, root: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            if time.monotonic() >= deadline:
                raise StoreInUse(
                    f"{root}: in use for {patience_s:.0f} s; try again once the jobs in progress have started"
                ) from error
        time.sleep(0.2)


def _locked(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", platform.node()) or "host"
