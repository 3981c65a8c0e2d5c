"""Files: atomic writing, checksums, permissions for a group, syncing to disk; the clock of a file system."""

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path


def sha256_file(path: Path) -> str:
    """Return the hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_lfs_pointer(content: bytes) -> bool:
    """Return whether the first bytes of a file are those of a Git LFS pointer instead of the file itself."""
    return content.startswith(b"version https://git-lfs.github.com/spec/")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces `path` when the body ends and is removed if the body fails.

    At any time, also after a crash, readers see the complete old or the complete new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        make_last([partial])
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old one or the complete new one."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write text so that readers see the old file or the complete new one."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: object) -> None:
    """Write JSON so that readers see the old file or the complete new one."""
    write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def make_last(paths: Iterable[Path]) -> None:
    """Sync these files and folders to disk (fsync); links are skipped, because their targets may be foreign."""
    for path in paths:
        if not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def make_folder(path: Path, like: Path) -> None:
    """Make a folder below `like`, with the permissions of `like` regardless of the umask; keep an existing folder."""
    if path == like or path.is_dir():
        return
    make_folder(path.parent, like)
    path.mkdir(exist_ok=True)
    _open_to(path, like.stat().st_mode)


def share(folder: Path, like: Path) -> None:
    """Give a folder and everything in it the permissions of the folder `like`, regardless of the umask."""
    mode = like.stat().st_mode
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            _open_to(path, mode)


def _open_to(path: Path, mode: int) -> None:
    now = path.stat().st_mode
    target = stat.S_IMODE(mode) if stat.S_ISDIR(now) else mode & 0o666
    if stat.S_IMODE(now) != target:
        # Some file systems have no permissions, and only an owner may set them.
        with contextlib.suppress(OSError):
            path.chmod(target)


def last_change_s(folder: Path) -> float:
    """Return when anything about a folder's files last changed, epoch seconds of the file system's clock.

    The time of change (ctime), because copying programs set that of modification to the original's.
    """
    newest = 0.0
    for path in [folder, *folder.rglob("*")]:
        with contextlib.suppress(OSError):
            newest = max(newest, path.lstat().st_ctime)
    return newest


def clock_s(folder: Path) -> float:
    """Return the time by the clock of the folder's file system, epoch seconds; the host's if it is not writable.

    A file server's clock may differ from this host's, and this host's may have been set.
    """
    try:
        return fresh_file_time_s(folder)
    except OSError:
        return time.time()


def fresh_file_time_s(folder: Path) -> float:
    """Return the time that the folder's file system gives a new file, epoch seconds. Raises OSError if it takes none."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
