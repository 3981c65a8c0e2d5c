"""An S3 of the test's own: moto's server, which keeps buckets in its memory and asks for no credentials."""

import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import plugins
from tests.support.testbed import free_pair, wait_until

LOCK = "test-s3"


def missing() -> str | None:
    """Why no S3 can be started here, None where one can."""
    return plugins.missing(LOCK, "moto", "flask_cors")


@contextmanager
def s3(log: Path) -> Iterator[str]:
    """Run a server on this host; offer its address. It answers when the block begins."""
    port = free_pair()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=plugins.environment(LOCK), stdout=output, stderr=output
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answer(address) is not None, f"an answer of moto ({log})")
        yield address
    finally:
        process.terminate()
        process.wait(30)


def keys(address: str, bucket: str) -> list[str]:
    """List what a bucket holds: up to 1,000 keys, none where there is no such bucket."""
    return re.findall(
        r"<Key>(.*?)</Key>", _answer(f"{address}/{bucket}?list-type=2") or ""
    )


def _answer(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return str(reply.read().decode())
    except (OSError, urllib.error.HTTPError):
        return None
