"""Files out of a pod, through commands in it: whole and verified, however often the connection is cut.

Every file's size and SHA-256 are asked for first. What arrives is kept as it comes, in a file NAME.part beside the
wanted one; after a cut reading goes on where it stopped. A file gets its name when its sum is right. The channel is
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
"""Most that one command sends: proxies on the way may end connections that last long."""
_STALL_S = 60.0
_LIST_STALL_S = 600.0
_FRUITLESS = 5
_DIFFERENT = 3
_SAY_S = 10.0
_MEBI = 1024 * 1024
# The scripts that run in the pod are small, for any shell, with tools that any image has; they end with these.
NO_TOOL, UNREADABLE, MISSING = 96, 97, 98

_NEEDS = "for tool in sha256sum wc head tail; do command -v $tool >/dev/null || { echo $tool >&2; exit 96; }; done"

# Size first, then the sum of that many bytes: a file that grows meanwhile (a log) is taken as it was.
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

# A part of a file: $2 its name, $3 its first byte, counted from 1, $4 how many.
READ = 'cd "$1" || exit 98; tail -c "+$3" <"$2" | head -c "$4"'


class RemoteFile(NamedTuple):
    """A file in a pod, by its path below the folder that is collected."""

    path: str
    size: int
    sha256: str


class TransferError(ClusterError):
    """A file could not be brought here whole."""


def collect(
    api: Api, namespace: str, pod: str, container: str, remote_path: str, local_path: Path, *, say: Say | None = None
) -> "PodFiles":
    """Bring one file of a running container to `local_path`. Raises TransferError."""
    remote = PurePosixPath(remote_path)
    found = PodFiles(api, namespace, pod, container, str(remote.parent), say)
    found.bring([remote.name], lambda _: local_path)
    return found


def collect_folder(
    api: Api, namespace: str, pod: str, container: str, remote_path: str, local_path: Path
) -> "PodFiles":
    """Bring all files below a folder of a running container here; links are left out. Raises TransferError."""
    found = PodFiles(api, namespace, pod, container, remote_path.rstrip("/") or "/")
    found.bring([], lambda path: local_path / path)
    return found


@dataclass
class PodFiles:
    """Files below the folder `root` of a container: which they are, how often a connection was cut, bytes received."""

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
        """Bring the named files, or all, each to its place."""
        try:
            self.files = tuple(self._list(*names))
            for file in self.files:
                self._bring(file, place(file.path))
        except OSError as error:
            raise TransferError(f"{self._what()}: cannot be written here: {error}") from error
        except ClusterError as error:
            if isinstance(error, TransferError):
                raise
            raise TransferError(f"{self._what()}: {error}", error.status, error.reason) from error

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
            else ("altered", "the connection alters what it carries")
        )
        raise TransferError(f"{self._what(file.path)}: its sum was wrong {_DIFFERENT} times; {why}", code=code)

    def _fill(self, file: RemoteFile, part: Path) -> None:
        """Append to a part until it is as long as the file, by as many commands as it takes."""
        begin, fruitless, here = time.monotonic(), 0, 0
        while here < file.size:
            cause = "it sends no more, though the file was longer when it was looked at"
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
        """Return what there is; a script that was cut off is run again, for it changes nothing."""
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
        """Yield what a script prints. Raises TransferError when it fails, Interrupted when it was cut off."""
        with self.api.running(self.namespace, self.pod, self.container, argv) as execution:
            try:
                yield from execution.output(stall_s)
                exit_code, said = execution.returncode, execution.stderr
            except ClusterError as error:
                # A runtime that finds no `sh` says so in words of its own, not by an exit code.
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
    """Return the command line of a script; its arguments are passed as they are, whatever is in them."""
    return ["sh", "-c", text, "collect", *map(str, arguments)]


def parse_list(output: bytes) -> list[RemoteFile]:
    """Read what LIST prints. Raises ValueError for what it does not print, such as a path that leads elsewhere.

    A connection may end well and still have lost the end of the output: EOFError.
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
    """Return why a script ended with this exit code: the failure's code, the file or tool it is about, a sentence."""
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
