"""Scripts that run in a pod so that its files can be collected: small, for any shell, with tools any image has."""

from collections.abc import Sequence
from typing import NamedTuple

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
