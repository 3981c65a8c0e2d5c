"""Bringing a file of this host into a pod, by commands there: nothing but a shell and base64 is needed."""

import base64
import hashlib
from pathlib import Path

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError

# Of one argument: well below the kernel's 128 KiB, and below what a URL may hold at most API servers.
_PIECE_BYTES = 3 * 2**10


def upload(api: Api, namespace: str, pod: str, container: str, local: Path, remote: str) -> None:
    """Write `local` to the path `remote` of a running container. Raises ClusterError."""
    content = local.read_bytes()
    script = 'mkdir -p "$(dirname "$0")" && printf %s "$1" | base64 -d > "$0.part-$2"'
    pieces = [content[begin : begin + _PIECE_BYTES] for begin in range(0, len(content), _PIECE_BYTES)] or [b""]
    for number, piece in enumerate(pieces):
        # Each piece into a file of its own: a command that is repeated because its answer was lost does no harm.
        argv = ["sh", "-c", script, remote, base64.b64encode(piece).decode(), f"{number:06d}"]
        _run(api, namespace, pod, container, argv, remote)
    join = 'cat "$0".part-* > "$0.whole" && rm -f "$0".part-* && mv "$0.whole" "$0" && sha256sum "$0"'
    said = _run(api, namespace, pod, container, ["sh", "-c", join, remote], remote)
    if said.split(maxsplit=1)[:1] != [hashlib.sha256(content).hexdigest()]:
        raise ClusterError(f"{remote} in pod {pod} is not what {local} is: {said or 'no checksum'}")


def _run(api: Api, namespace: str, pod: str, container: str, argv: list[str], remote: str) -> str:
    done = api.exec(namespace, pod, container, argv)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        why = said or f"exit code {done.returncode}"
        raise ClusterError(f"{remote} cannot be written in pod {pod}: {why}", code="not_written", pod=pod, path=remote)
    return done.text
