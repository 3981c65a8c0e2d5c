"""Copies files out of a pod through commands in it: complete and verified, however often the connection breaks.

Every file's size and SHA-256 are read first. Its bytes are appended to a file NAME.part in the target folder; after a
lost connection, reading continues where it stopped. The file is renamed once its SHA-256 is right. The channel is
binary-safe.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError, Interrupted
from kveval.engines.protocol import Say
from kveval.host.files import sha256_file

CHUNK_BYTES = 256 * 1024 * 1024
"""Most bytes that one command sends, because proxies may end long-lasting connections."""
_STALL_S = 60.0
_LIST_STALL_S = 600.0
_FRUITLESS = 5
_DIFFERENT = 3
_SAY_S = 10.0
_MEBI = 1024 * 1024
# Exit codes of the scripts that run in the pod; these need only a POSIX shell and tools that nearly any image has.
NO_TOOL, UNREADABLE, MISSING = 96, 97, 98

_NEEDS = "for tool in sha256sum wc head tail; do command -v $tool >/dev/null || { echo $tool >&2; exit 96; }; done"

# Size first, then the SHA-256 of that many bytes: a file that grows meanwhile (a log) is copied as it was.
LIST = rf"""{_NEEDS}
cd "$1" 2>/dev/null || {{ [ -e "$1" ] && exit 97; exit 98; }}
one() {{
  size=$(wc -c <"$1") && sum=$(head -c $((size)) <"$1" | sha256sum) || {{ echo "$1" >&2; exit 97; }}
  printf '%s %s %s\000' $((size)) "${{sum%% *}}" "$1"
}}
all() {{
  for f in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    [ -L "$f" ] && continue
    if [ -d "$f" ]; then all "$f"; elif [ -f "$f" ]; then one "$f"; fi
  done
}}
shift
[ $# -gt 0 ] || all .
for name; do [ -f "$name" ] || {{ echo "$name" >&2; exit 98; }}; one "$name"; done
printf 'end\000'"""

# A part of a file: $2 the file's name, $3 the part's first byte, counted from 1, $4 the number of bytes.
READ = 'cd "$1" || exit 98; tail -c "+$3" <"$2" | head -c "$4"'


class RemoteFile(NamedTuple):
    """A file in a pod; `path` is relative to the folder that is collected, `size` in bytes."""

    path: str
    size: int
    sha256: str


class TransferError(ClusterError):
    """A file could not be copied completely."""


def collect(
    api: Api, namespace: str, pod: str, container: str, remote_path: str, local_path: Path, *, say: Say | None = None
) -> "PodFiles":
    """Copy one file of a running container to `local_path`. Raises TransferError."""
    remote = PurePosixPath(remote_path)
    found = PodFiles(api, namespace, pod, container, str(remote.parent), say)
    found.bring([remote.name], lambda _: local_path)
    return found


def collect_folder(
    api: Api, namespace: str, pod: str, container: str, remote_path: str, local_path: Path
) -> "PodFiles":
    """Copy all files below a folder of a running container to `local_path`, without links. Raises TransferError."""
    found = PodFiles(api, namespace, pod, container, remote_path.rstrip("/") or "/")
    found.bring([], lambda path: local_path / path)
    return found


@dataclass
class PodFiles:
    """Files below the folder `root` of a container; `cuts`: lost connections so far, `received`: bytes so far."""

    api: Api
    namespace: str
    pod: str
    container: str
    root: str
    say: Say | None = None
    files: tuple[RemoteFile, ...] = ()
    cuts: int = 0
    received: int = 0
    _said_at: float = field(default_factory=time.monotonic)

    def bring(self, names: Sequence[str], place: Callable[[str], Path]) -> None:
        """Copy the named files, or all if none is named, each to the path that `place` returns for it."""
        try:
            self.files = tuple(self._list(*names))
            for file in self.files:
                self._bring(file, place(file.path))
        except OSError as error:
            raise TransferError(f"{self._what()}: cannot be written here: {error}") from error
        except ClusterError as error:
            if isinstance(error, TransferError):
                raise
            said = f"{self._what()}: {error}"
            raise TransferError(said, error.status, error.reason, code=error.code, **error.facts) from error

    def _bring(self, file: RemoteFile, final: Path) -> None:
        part = final.with_name(f"{final.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_DIFFERENT):
            part.write_bytes(b"")
            self._fill(file, part)
            if part.stat().st_size == file.size and sha256_file(part) == file.sha256:
                part.replace(final)
                return
            before, (file,) = file, self._list(file.path)
        code, why = (
            ("keeps_changing", "it keeps changing: stop what writes it first")
            if file != before
            else ("altered", "the connection corrupts data")
        )
        raise TransferError(f"{self._what(file.path)}: its SHA-256 was wrong {_DIFFERENT} times; {why}", code=code)

    def _fill(self, file: RemoteFile, part: Path) -> None:
        """Append to `part` until it is as long as `file`, with as many commands as that takes."""
        begin, fruitless, here = time.monotonic(), 0, 0
        while here < file.size:
            cause = "the file has become shorter since it was listed"
            wanted = min(file.size - here, CHUNK_BYTES)
            try:
                with part.open("ab") as sink:
                    for piece in self._output(script(READ, self.root, file.path, here + 1, wanted), _STALL_S):
                        sink.write(piece)
                        self.received += len(piece)
            except Interrupted as error:
                self._cut(fruitless)
                cause = str(error)
            before, here = here, part.stat().st_size
            fruitless = 0 if here > before else fruitless + 1
            if fruitless >= _FRUITLESS:
                raise TransferError(
                    f"{self._what(file.path)}: nothing arrived in {fruitless} attempts, {here} of {file.size} "
                    f"bytes are here ({cause})",
                    code="nothing_arrived",
                    attempts=fruitless,
                    bytes_here=here,
                    bytes_there=file.size,
                )
            now = time.monotonic()
            if self.say is not None and now - self._said_at >= _SAY_S:
                self._said_at, speed = now, self.received / _MEBI / (now - begin)
                done = f"{here / _MEBI:.0f} of {file.size / _MEBI:.0f} MiB ({speed:.0f} MiB/s, {self.cuts} cuts)"
                self.say(f"{self._what(file.path)}: {done}")

    def _list(self, *names: str) -> list[RemoteFile]:
        """Return the files; if the connection is lost, the script is run again, because it changes nothing."""
        for attempt in range(_FRUITLESS):
            try:
                return parse_list(b"".join(self._output(script(LIST, self.root, *names), _LIST_STALL_S)))
            except ValueError as error:
                raise TransferError(f"{self._what()}: {error}") from error
            except (Interrupted, EOFError):
                if attempt == _FRUITLESS - 1:
                    raise
                self._cut(attempt)
        raise AssertionError("unreachable")

    def _cut(self, fruitless: int) -> None:
        self.cuts += 1
        time.sleep(min(0.2 * 2**fruitless, 5.0))

    def _output(self, argv: Sequence[str], stall_s: float) -> Iterator[bytes]:
        """Yield what a script prints. Raises TransferError if it fails, Interrupted if the connection is lost."""
        with self.api.running(self.namespace, self.pod, self.container, argv) as execution:
            try:
                yield from execution.output(stall_s)
                exit_code, said = execution.returncode, execution.stderr
            except ClusterError as error:
                # A container runtime that finds no `sh` reports it in a message, not by an exit code.
                exit_code, said = 127, str(error).encode()
                if b"executable file not found" not in said and b"no such file or directory" not in said:
                    raise
        if exit_code:
            code, about, text = explain(exit_code, said, argv, self.root)
            raise TransferError(f"{self._what()}: {text}", code=code, about=about)

    def _what(self, path: str = "") -> str:
        within = f"{self.root.rstrip('/')}/{path}" if path else self.root
        return f"collecting {within} from container {self.container} of pod {self.namespace}/{self.pod}"


def script(text: str, *arguments: str | int) -> list[str]:
    """Return the command line of a script; its arguments are passed unchanged, whatever characters they contain."""
    return ["sh", "-c", text, "collect", *map(str, arguments)]


def parse_list(output: bytes) -> list[RemoteFile]:
    """Parse the output of LIST. Raises ValueError for an invalid entry, such as a path that leads out of the folder.

    Raises EOFError if the end of the output is missing: a connection may lose it without an error.
    """
    *entries, end, last = f"\0{output.decode(errors='surrogateescape')}".split("\0")
    if (end, last) != ("end", ""):
        raise EOFError
    found = []
    for entry in entries[1:]:
        size, sha256, path = entry.split(" ", 2)
        path = path.removeprefix("./")
        if len(sha256) != 64 or not path or path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"unexpected entry {entry!r} in the list of a pod's files")
        found.append(RemoteFile(path, int(size), sha256))
    return found


def explain(code: int, stderr: bytes, argv: Sequence[str], root: str) -> tuple[str, str, str]:
    """Return why a script ended with this exit code: the failure's code, the file or tool concerned, a sentence."""
    said = " ".join(stderr.decode(errors="replace").split())
    if code == NO_TOOL:
        tools = "sh, head, tail, wc and sha256sum"
        return "no_tool", said, f"the container's image has no `{said}`: collect from a container that has {tools}"
    path = f"{root}/{said}" if said else root
    if code == UNREADABLE:
        return "unreadable", path, f"{path} cannot be " + ("read by the container's user" if said else "entered")
    if code == MISSING:
        return ("no_file", path, f"there is no {path}") if said else ("no_folder", path, f"there is no folder {path}")
    if code in (126, 127):
        return "no_shell", "sh", f"the container's image has no shell ({said}): collect from a container that has sh"
    return "script_failed", argv[0], f"`{argv[0]}` ended with exit code {code}: {said or 'no message'}"
