"""Copies files out of a pod through scripts in it: complete and verified, however often the connection breaks.

Every file's size and SHA-256 are read first. Its bytes are appended to a file NAME.part in the target folder; after a
lost connection, reading continues where it stopped. The file is renamed once its SHA-256 is right.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError, Interrupted
from kveval.engines.protocol import Log
from kveval.host.files import sha256_file

_STALL_S = 60.0
_LIST_STALL_S = 600.0
_FRUITLESS = 5
_DIFFERENT = 3
_SAY_S = 10.0
_MEBI = 1024 * 1024
# Lists the file or folder $1 in the folder $0. The last word shows that no output was lost.
LIST = r"""
cd "$0" && find "./$1" -type f -exec sh -c 'for file; do
  size=$(wc -c <"$file") && sum=$(sha256sum <"$file") || exit 1
  printf "%s %s %s\000" $((size)) "${sum%% *}" "$file"
done' list {} + && printf 'end\000'
"""
# Prints $3 bytes of the file $1 in the folder $0, from its $2nd on.
READ = r"""
cd "$0" && [ ! -L "./$1" ] && [ -f "./$1" ] && tail -c "+$2" "./$1" | head -c "$3"
"""
Output = Callable[[str, Sequence[str], float], Iterator[bytes]]
"""Runs a script with arguments in a folder, and yields what it prints; the last: the longest silence, seconds.

Raises TransferError if the script fails, Interrupted if the connection is lost.
"""


class RemoteFile(NamedTuple):
    """A file in a pod: its path below what is collected, its size in bytes."""

    path: str
    size: int
    sha256: str


class TransferError(ClusterError):
    """A file could not be copied completely."""


def collect(
    api: Api,
    namespace: str,
    pod: str,
    container: str,
    remote: str,
    local: Path,
    *,
    say: Log | None = None,
) -> "Transfer":
    """Copy a file of a running container, or all files of a folder without links, to `local`. Raises TransferError."""
    place = PurePosixPath(remote)
    what = f"collecting {remote} from container {container} of pod {namespace}/{pod}"

    def output(
        script: str, arguments: Sequence[str], stall_s: float
    ) -> Iterator[bytes]:
        argv = ["sh", "-c", script, str(place.parent), *arguments]
        with contextlib.closing(
            api.started(namespace, pod, container, argv)
        ) as execution:
            yield from execution.output(stall_s)
        if execution.returncode:
            reason = (
                " ".join(execution.stderr.decode(errors="replace").split())
                or f"exit code {execution.returncode}"
            )
            raise TransferError(f"{what}: {reason}", code="command_failed", said=reason)

    return copy(Transfer(output, what, place.name, say=say), local)


def copy(transfer: "Transfer", local: Path) -> "Transfer":
    """Copy all files of a transfer to `local`. Raises TransferError."""
    try:
        for file in transfer.listed():
            transfer.bring(file, local / file.path)
    except OSError as error:
        raise TransferError(
            f"{transfer.what}: cannot be written here: {error}"
        ) from error
    except ClusterError as error:
        if isinstance(error, TransferError):
            raise
        message = f"{transfer.what}: {error}"
        raise TransferError(
            message, error.status, error.reason, code=error.code, **error.facts
        ) from error
    return transfer


@dataclass
class Transfer:
    """A file or folder `name`, copied by `output`; `cuts`: lost connections so far, `received`: bytes so far.

    `what`: what is copied, for messages; `piece_bytes`: the most that one script prints.
    """

    output: Output
    what: str
    name: str
    piece_bytes: int = sys.maxsize
    say: Log | None = None
    cuts: int = 0
    received: int = 0
    _said_at: float = field(default_factory=time.monotonic)

    def listed(self, path: str = "") -> list[RemoteFile]:
        """Return the files below a path; if the connection is lost, they are listed again."""
        place = str(PurePosixPath(self.name, path))
        for fruitless in range(_FRUITLESS):
            with contextlib.suppress(Interrupted, EOFError):
                output = b"".join(self.output(LIST, [place], _LIST_STALL_S))
                return parse_list(output, self.name)
            self._cut(fruitless)
        raise TransferError(
            f"{self.what}: the list of files was cut off {_FRUITLESS} times",
            code="not_listed",
        )

    def bring(self, file: RemoteFile, final: Path) -> None:
        """Copy one file to `final`."""
        part = final.with_name(f"{final.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_DIFFERENT):
            part.write_bytes(b"")
            self._fill(file, part)
            if sha256_file(part) == file.sha256:
                part.replace(final)
                return
            # It may have changed since it was listed.
            [file] = self.listed(file.path)
        message = f"{self.what}: the SHA-256 of {final.name} was wrong {_DIFFERENT} times: does something still write it?"
        raise TransferError(message, code="altered")

    def _fill(self, file: RemoteFile, part: Path) -> None:
        """Append to `part` until it is as long as `file`, with as many scripts as that takes."""
        begin, fruitless, here = time.monotonic(), 0, 0
        place = str(PurePosixPath(self.name, file.path))
        while here < file.size:
            cause = "the file has become shorter since it was listed"
            try:
                with part.open("ab") as sink:
                    size = min(self.piece_bytes, file.size - here)
                    arguments = [place, str(here + 1), str(size)]
                    for piece in self.output(READ, arguments, _STALL_S):
                        sink.write(piece)
                        self.received += len(piece)
            except Interrupted as error:
                self._cut(fruitless)
                cause = str(error)
            before, here = here, part.stat().st_size
            fruitless = 0 if here > before else fruitless + 1
            if fruitless >= _FRUITLESS:
                raise TransferError(
                    f"{self.what}: nothing of {place} arrived in {fruitless} attempts, {here} of {file.size} bytes are"
                    f" here ({cause})",
                    code="nothing_arrived",
                    attempts=fruitless,
                    bytes_here=here,
                    bytes_there=file.size,
                )
            now = time.monotonic()
            if self.say is not None and now - self._said_at >= _SAY_S:
                self._said_at, speed = now, self.received / _MEBI / (now - begin)
                done = f"{here / _MEBI:.0f} of {file.size / _MEBI:.0f} MiB ({speed:.0f} MiB/s, {self.cuts} cuts)"
                self.say(f"{self.what}: {done}")

    def _cut(self, fruitless: int) -> None:
        self.cuts += 1
        time.sleep(min(0.2 * 2**fruitless, 5.0))


def parse_list(output: bytes, within: str) -> list[RemoteFile]:
    """Parse the output of the list of a file or folder `within`. Raises TransferError for a path that leads out of it.

    Raises EOFError if the end of the output is missing: a connection may lose it without an error.
    """
    *entries, end = (
        output.decode(errors="surrogateescape").removesuffix("\0").split("\0")
    )
    if end != "end":
        raise EOFError
    files = []
    for entry in entries:
        size, sha256, path = entry.split(" ", 2)
        place = PurePosixPath(path)
        if not place.is_relative_to(within) or ".." in place.parts:
            raise TransferError(
                f"unexpected entry {entry!r} in the list of a pod's files"
            )
        files.append(RemoteFile(str(place.relative_to(within)), int(size), sha256))
    return files
