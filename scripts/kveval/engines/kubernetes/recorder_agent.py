"""Answers the workflow's account in a recorder that an administrator has installed: fixed scripts, and nothing else.

It runs as root beside pmcd, on the node's network. Whoever asks signs with the key that both have; what reaches a script
matches a pattern. A recording that nobody asks about any more is ended. Standard library only.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PORT = 44380
KEPT_S = 3 * 3600.0
"""Seconds without a question after which a recording is ended and removed: longer than servers take to start anew."""
_SKEW_S = 300.0
_BODY_BYTES = 2**20
_SCRIPT_S = 140.0
MARK = r"r[0-9a-f]{8}|none"
_NAME = r"[A-Za-z]\w*"
_URL = r"https?://[\w.:\[\]-]+(?:/[\w./-]*)?"
_PROCESSES = r"(?:log mandatory on default \{\n(?:    [a-z_.]+ \[ [0-9, ]+ \]\n)+\}\n)?"
# Of each script: patterns of its first arguments, and of all others in turn.
ARGUMENTS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "alive": ((), ()),
    "begun": ([r"[a-z_.]+"], ()),
    "clock": ((), ()),
    "list": (["archive"], ()),
    "missing": ((), [_NAME]),
    "processes": ((), [r"[0-9a-f-]{36}"]),
    "read": ([r"archive/[\w.-]+", r"[0-9]+", r"[0-9]{1,7}"], ()),
    "reach": ((), [_URL]),
    "remove": ((), ()),
    "sources": ((), [_NAME, f"{_URL}(?: {_URL})*"]),
    "start": ([_PROCESSES, r"[0-9]+"], [_NAME, _NAME]),
    "stop": ((), ()),
    "version": ((), ()),
}


class RefusedRequest(Exception):
    """A request that is not answered, with the reason."""


def signed(key: bytes, request: Mapping[str, Any]) -> dict[str, str]:
    """Return the body of a request, with its signature."""
    text = json.dumps(request)
    return {"request": text, "signature": _signature(key, text)}


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def opened(key: bytes, body: bytes, now: float) -> dict[str, Any]:
    """Return the request in a body. Raises RefusedRequest unless it is signed with the key, recent and well formed."""
    try:
        parts = json.loads(body)
        text, signature = str(parts["request"]), str(parts["signature"])
        if not hmac.compare_digest(_signature(key, text), signature):
            raise RefusedRequest("the signature is not of this recorder's key")
        request: dict[str, Any] = json.loads(text)
        if abs(now - float(request["time"])) > _SKEW_S:
            raise RefusedRequest("the request's time is not this node's")
        words = [str(word) for word in request["arguments"]]
        script, mark = str(request["script"]), str(request["mark"])
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedRequest(f"not a request: {error!r}") from error
    if not re.fullmatch(MARK, mark):
        raise RefusedRequest(f"{mark!r} is no recording")
    if script == "sources" and not all(
        word.endswith(f"_{mark}") for word in words[::2]
    ):
        raise RefusedRequest(f"sources of {mark} end in its name")
    if not matches(script, words):
        raise RefusedRequest(f"{script!r} is not done with {words}")
    return {"script": script, "mark": mark, "arguments": words}


def matches(script: str, words: Sequence[str]) -> bool:
    """Tell whether a script may have these arguments."""
    first, others = ARGUMENTS.get(script, (None, ()))
    if first is None or len(words) < len(first):
        return False
    rest = words[len(first) :]
    if len(rest) % max(1, len(others)) or (rest and not others):
        return False
    patterns = [*first, *(others[place % len(others)] for place in range(len(rest)))]
    pairs = zip(patterns, words, strict=True)
    return all(re.fullmatch(pattern, word) for pattern, word in pairs)


class Agent:
    """Answers to requests.

    `scripts`: the text of each script by name; `root`: the folder of all recordings.
    """

    def __init__(self, scripts: Mapping[str, str], root: Path) -> None:
        self._scripts, self._root = scripts, root
        self._asked: dict[str, float] = {}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the exit code and the output, in base64, of what a request asks for."""
        script, mark, words = (
            request["script"],
            request["mark"],
            list(request["arguments"]),
        )
        self._asked[mark] = time.monotonic()
        folder = self._root / mark
        # The first one may have been asked for by a request whose answer was lost.
        if script == "start" and (folder / "pid").exists():
            return _output(b"")
        return self._run(script, folder, words)

    def end_forsaken(self) -> None:
        """End the recordings about which nobody has asked for long."""
        now = time.monotonic()
        for folder in self._root.glob("r*"):
            if now - self._asked.setdefault(folder.name, now) > KEPT_S:
                self._run("remove", folder, [])

    def _run(self, script: str, folder: Path, words: list[str]) -> dict[str, Any]:
        done = subprocess.run(
            ["sh", "-c", self._scripts[script], str(folder), *words],
            capture_output=True,
            timeout=_SCRIPT_S,
        )
        return _output(done.stdout, done.stderr, done.returncode)


def _output(stdout: bytes, stderr: bytes = b"", code: int = 0) -> dict[str, Any]:
    return {
        "returncode": code,
        "stdout": base64.b64encode(stdout).decode(),
        "stderr": base64.b64encode(stderr).decode(),
    }


def serve(agent: Agent, key: bytes, address: tuple[str, int]) -> ThreadingHTTPServer:
    """Return a server that answers requests; `serve_forever` starts it."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 60.0

        def do_POST(self) -> None:
            try:
                length = int(self.headers.get("Content-Length") or 0)
                if length > _BODY_BYTES:
                    raise RefusedRequest("too long")
                request = opened(key, self.rfile.read(length), time.time())
                self._reply(200, agent.answer(request))
            except (RefusedRequest, ValueError) as error:
                self._reply(403, {"message": str(error)})
            except (OSError, subprocess.TimeoutExpired) as error:
                self._reply(500, {"message": str(error)})

        def _reply(self, status: int, content: Mapping[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_given: object) -> None:
            """Say nothing of each request."""

    class Listener(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

    return Listener(address, Handler)


def main(settings: Path, key_file: Path) -> None:
    """Answer on the node's address, as HOST_IP has it; `settings`: the folder with scripts.json."""
    scripts = json.loads((settings / "scripts.json").read_text())
    agent = Agent(scripts, Path(os.environ["KVEVAL_RUNS"]))
    key = key_file.read_bytes().strip()
    if len(key) < 32:
        sys.exit(f"{key_file} has fewer than 32 characters")
    server = serve(agent, key, (os.environ["HOST_IP"], PORT))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(60.0)
        agent.end_forsaken()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
