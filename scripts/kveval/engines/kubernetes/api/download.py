"""Files out of a pod, through commands in it: whole and verified, however often the connection is cut.

Every file's size and SHA-256 are asked for first. What arrives is kept as it comes, in a file NAME.part beside the
wanted one; after a cut reading goes on where it stopped, also by a later process, once the beginning on disk has been
found to be that of the file in the pod. A file gets its name when its sum is right. The channel is binary-safe.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError, Interrupted
from kveval.engines.kubernetes.api.exec import Execution
from kveval.engines.kubernetes.api.pod_scripts import BLOCK, LIST, PREFIX, READ, RemoteFile, explain, parse_list, script

Say = Callable[[str], None]

CHUNK_BYTES = 256 * 1024 * 1024
"""Most that one command sends: proxies on the way may end connections that last long."""
_STALL_S = 60.0
_LIST_STALL_S = 600.0
# The command is part of a URL, and some proxies take no longer ones than 8 KiB.
_ARGUMENT_BYTES = 3000
_FRUITLESS = 5
_DIFFERENT = 3
_SAY_S = 10.0
_MEBI = 1024 * 1024


Result = TypeVar("Result")


class TransferError(ClusterError):
    """A file could not be brought here whole."""


@dataclass(frozen=True)
class Collected:
    """What was collected: every file with its size and sum, the seconds it took and how often it was cut."""

    files: tuple[RemoteFile, ...]
    seconds: float
    cuts: int
    received: int
    """Bytes that came through the connection; less than the files' where some were here already."""


@dataclass
class _Incoming:
    """A file on its way: how much of it is here, and the sum of that."""

    file: RemoteFile
    final: Path
    here: int = 0
    sha256: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    differed: int = 0

    @property
    def part(self) -> Path:
        return self.final.with_name(f"{self.final.name}.part")

    @property
    def missing(self) -> int:
        return self.file.size - self.here

    def append(self, sink: IO[bytes], data: bytes) -> None:
        sink.write(data)
        self.sha256.update(data)
        self.here += len(data)

    def restart(self) -> None:
        self.part.unlink(missing_ok=True)
        self.here, self.sha256 = 0, hashlib.sha256()


def collect(
    api: Api,
    namespace: str,
    pod: str,
    container: str,
    remote_path: str,
    local_path: Path,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    say: Say | None = None,
) -> Collected:
    """Bring one file of a running container to `local_path`. Raises TransferError."""
    remote = PurePosixPath(remote_path)
    collection = _Collection(api, namespace, pod, container, str(remote.parent), chunk_bytes, say)
    return collection.bring([remote.name], lambda _: local_path)


def collect_folder(
    api: Api,
    namespace: str,
    pod: str,
    container: str,
    remote_path: str,
    local_path: Path,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    say: Say | None = None,
) -> Collected:
    """Bring all files below a folder of a running container to `local_path`; links are left out. Raises TransferError.

    Files that are here already, with the right sum, are not brought again.
    """
    collection = _Collection(api, namespace, pod, container, remote_path.rstrip("/") or "/", chunk_bytes, say)
    return collection.bring([], lambda path: local_path / path)


@dataclass
class _Collection:
    api: Api
    namespace: str
    pod: str
    container: str
    root: str
    chunk_bytes: int
    say: Say | None
    cuts: int = 0
    received: int = 0
    _said_at: float = field(default_factory=time.monotonic)

    def bring(self, names: Sequence[str], place: Callable[[str], Path]) -> Collected:
        """Bring the named files below `root`, or all, each to its place."""
        begin = time.monotonic()
        try:
            files = self._list(names)
            incoming = [_Incoming(file, place(file.path)) for file in files]
            wanted = [entry for entry in incoming if not self._is_here(entry)]
            self._take_up(wanted)
            self._receive_all(wanted, begin)
        except OSError as error:
            raise TransferError(f"{self._what()}: cannot be written here: {error}") from error
        except ClusterError as error:
            if isinstance(error, TransferError):
                raise
            raise TransferError(f"{self._what()}: {error}", error.status, error.reason) from error
        files = [entry.file for entry in incoming]
        return Collected(tuple(files), time.monotonic() - begin, self.cuts, self.received)

    def _what(self, path: str = "") -> str:
        within = f"{self.root.rstrip('/')}/{path}" if path else self.root
        return f"collecting {within} from container {self.container} of pod {self.namespace}/{self.pod}"

    # --- what is there

    def _list(self, names: Sequence[str]) -> list[RemoteFile]:
        return self._run(script(LIST, self.root, *names), parse_list)

    def _run(self, argv: Sequence[str], parse: Callable[[bytes], Result]) -> Result:
        """Return what a script says; one that was cut off is run again, for these scripts change nothing."""
        for attempt in range(_FRUITLESS):
            try:
                with self._started(argv) as execution:
                    output = b"".join(execution.output(_LIST_STALL_S))
                if not execution.returncode:
                    return parse(output)
            except ValueError as error:
                raise TransferError(f"{self._what()}: {error}") from error
            except (Interrupted, EOFError):
                self.cuts += 1
                if attempt == _FRUITLESS - 1:
                    raise
                time.sleep(min(0.2 * 2**attempt, 5.0))
                continue
            text = explain(execution.returncode or 0, execution.stderr, argv, self.root)
            raise TransferError(f"{self._what()}: {text}")
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def _started(self, argv: Sequence[str]) -> Iterator[Execution]:
        with self.api.running(self.namespace, self.pod, self.container, argv) as execution:
            try:
                yield execution
            except ClusterError as error:
                # A runtime that finds no `sh` says so in words of its own, not by an exit code.
                said = str(error)
                if "executable file not found" not in said and "no such file or directory" not in said:
                    raise
                raise TransferError(f"{self._what()}: {explain(127, said.encode(), argv, self.root)}") from error

    # --- what is here

    @staticmethod
    def _is_here(entry: _Incoming) -> bool:
        final = entry.final
        if not final.is_file() or final.stat().st_size != entry.file.size:
            return False
        with final.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.file.sha256

    def _take_up(self, wanted: Sequence[_Incoming]) -> None:
        """Go on with what an earlier process left, where it is the beginning of the file in the pod."""
        begun = [entry for entry in wanted if entry.part.is_file() and 0 < entry.part.stat().st_size <= entry.file.size]
        # Few were on their way when the earlier process ended, so one command for each will do.
        for entry in begun:
            size = entry.part.stat().st_size
            there = self._run(script(PREFIX, self.root, entry.file.path, size), _first_word)
            with entry.part.open("rb") as file:
                here = hashlib.file_digest(file, hashlib.sha256)
            if here.hexdigest() == there:
                entry.here, entry.sha256 = size, here
        for entry in wanted:
            entry.final.parent.mkdir(parents=True, exist_ok=True)
            if not entry.here:
                entry.restart()

    # --- the way

    def _receive_all(self, wanted: Sequence[_Incoming], begin: float) -> None:
        total = sum(entry.file.size for entry in wanted)
        pending = list(wanted)
        fruitless = 0
        while True:
            pending = [entry for entry in pending if not self._finished(entry)]
            if not pending:
                return
            before = self.received
            try:
                self._receive(self._next(pending))
                fruitless = fruitless + 1 if self.received == before else 0
                cause = "it sends no more, though the file was longer when it was looked at"
            except Interrupted as error:
                self.cuts += 1
                fruitless = fruitless + 1 if self.received == before else 0
                cause = str(error)
                time.sleep(min(0.2 * 2**fruitless, 5.0))
            if fruitless >= _FRUITLESS:
                there = sum(entry.here for entry in wanted)
                raise TransferError(
                    f"{self._what(pending[0].file.path)}: nothing arrived in {fruitless} attempts, {there} of {total} "
                    f"bytes are here ({cause}); run it again to go on from there"
                )
            self._report(wanted, total, begin)

    def _next(self, pending: Sequence[_Incoming]) -> list[tuple[_Incoming, int]]:
        """Choose what one command sends: the rest of files, in order, neither too many bytes nor too long a URL."""
        chosen: list[tuple[_Incoming, int]] = []
        room, letters = self.chunk_bytes, _ARGUMENT_BYTES
        for entry in pending:
            letters -= len(entry.file.path.encode(errors="surrogateescape")) * 3 + 30
            if chosen and (letters < 0 or room <= 0):
                break
            length = min(entry.missing, room)
            chosen.append((entry, length))
            room -= length
        return chosen

    def _receive(self, chosen: Sequence[tuple[_Incoming, int]]) -> None:
        """Run one command and put what it sends where it belongs."""
        arguments: list[str | int] = []
        for entry, length in chosen:
            again = entry.here % BLOCK
            arguments += [entry.file.path, entry.here // BLOCK, again + length]
        argv = script(READ, self.root, *arguments)
        with self._started(argv) as execution:
            data = _Parts(execution.output(_STALL_S))
            for entry, length in chosen:
                data.skip(entry.here % BLOCK)
                with entry.part.open("ab") as sink:
                    for piece in data.take(length):
                        entry.append(sink, piece)
                        self.received += len(piece)
            surplus = sum(len(piece) for piece in data.take(1))
        if surplus:
            raise TransferError(
                f"{self._what()}: more arrived than was asked for; is its image's `head` or `dd` another?"
            )
        if execution.returncode:
            raise TransferError(f"{self._what()}: {explain(execution.returncode, execution.stderr, argv, self.root)}")

    def _finished(self, entry: _Incoming) -> bool:
        """Whether a file is whole; it then gets its name. One whose sum is wrong is begun anew, a few times."""
        if entry.missing:
            return False
        if not entry.file.size:
            entry.part.touch()
        if entry.sha256.hexdigest() == entry.file.sha256:
            entry.part.replace(entry.final)
            return True
        entry.differed += 1
        [now] = self._list([entry.file.path])
        changed = now != entry.file
        if entry.differed >= _DIFFERENT:
            why = "it keeps changing: stop what writes it first" if changed else "the connection alters what it carries"
            raise TransferError(
                f"{self._what(entry.file.path)}: its sum was wrong {entry.differed} times (expected "
                f"{entry.file.sha256}, got {entry.sha256.hexdigest()}); {why}"
            )
        entry.file = now
        entry.restart()
        return False

    def _report(self, wanted: Sequence[_Incoming], total: int, begin: float) -> None:
        now = time.monotonic()
        if self.say is None or now - self._said_at < _SAY_S:
            return
        self._said_at = now
        here = sum(entry.here for entry in wanted)
        speed = self.received / _MEBI / (now - begin)
        self.say(f"{self._what()}: {here / _MEBI:.0f} of {total / _MEBI:.0f} MiB ({speed:.0f} MiB/s, {self.cuts} cuts)")


def _first_word(output: bytes) -> str:
    if not output.endswith(b"\n"):
        raise EOFError
    return output.decode().split()[0]


class _Parts:
    """A stream of pieces, to be taken by numbers of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def take(self, count: int) -> Iterator[bytes]:
        """Yield the next `count` bytes, or fewer when the stream ends."""
        while count > 0:
            piece = self._rest or next(self._pieces, b"")
            if not piece:
                return
            piece, self._rest = piece[:count], piece[count:]
            count -= len(piece)
            yield piece

    def skip(self, count: int) -> None:
        for _ in self.take(count):
            pass
