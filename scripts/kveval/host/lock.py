"""The lock that prevents two measurements on one host at the same time."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Not in tempfile's folder, which may differ between users and shells: there is one lock per host. The variable is for
# tests that do not really measure.
LOCK = Path(os.environ.get("KVEVAL_HOST_LOCK") or "/tmp/kveval-measurement.lock")
_REMIND_S = 30.0


@contextlib.contextmanager
def host_lock(
    purpose: str, *, waiting: Callable[[str], None], path: Path = LOCK
) -> Iterator[None]:
    """Hold the host's measurement lock; while another measurement holds it, wait and report that with `waiting`.

    The kernel releases the lock however the process ends. The file is kept: removing it would allow two holders.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with contextlib.suppress(PermissionError):
            # Other users of the host must be able to open it, whatever the umask.
            path.chmod(0o666)
    try:
        reminded = -_REMIND_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() - reminded >= _REMIND_S:
                    holder = (
                        os.pread(descriptor, 400, 0).decode(errors="replace").strip()
                    )
                    waiting(
                        f"waiting for the host: another measurement is running ({holder or 'unknown'})"
                    )
                    reminded = time.monotonic()
                time.sleep(0.5)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}: {purpose}\n".encode(), 0)
        try:
            yield
        finally:
            # The next holder is not to be reported under this name before it has written its own.
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path = LOCK) -> str | None:
    """Return the text that the lock's holder wrote, None if the lock is free; does not take the lock."""
    with contextlib.suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(400).strip() or "unknown"
    return None
