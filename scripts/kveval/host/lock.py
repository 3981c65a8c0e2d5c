"""The one lock that keeps two local measurements of a host from ever running at the same time."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# Not tempfile's folder, which every user and shell may have set differently: the lock is the host's. The variable is
# for tests whose measurements are none.
LOCK = Path(os.environ.get("KVEVAL_HOST_LOCK") or "/tmp/kveval-measurement.lock")
_REMIND_S = 30.0


@contextlib.contextmanager
def host_lock(purpose: str, *, waiting: Callable[[str], None], path: Path = LOCK) -> Iterator[None]:
    """Hold the host's measurement lock; while another measurement holds it, wait and say so through `waiting`.

    The kernel drops the lock with the process, however that ends. The file stays: removing it would let two holders in.
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
                    holder = os.pread(descriptor, 400, 0).decode(errors="replace").strip()
                    waiting(f"waiting for the host: another measurement is running ({holder or 'unknown'})")
                    reminded = time.monotonic()
                time.sleep(0.5)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}: {purpose}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path = LOCK) -> str | None:
    """Return who holds the lock, None for nobody; looking takes it from no one."""
    with contextlib.suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read(400).strip() or "unknown"
    return None
