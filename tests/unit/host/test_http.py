"""Plain HTTP: answers, failures, and no proxy between this host and its own servers."""

import http.server
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveval.engines.local.server import server_environment
from kveval.engines.servers.endpoint import Endpoint
from kveval.host.http import HttpError, fetch, fetch_from, free_port, request
from kveval.load import guidellm
from kveval.pcp.recording import _wait_for_endpoint
from kveval.stacks.vllm import VLLM

_METRICS = (
    b"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 5.0\n"
)


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/missing" else 200)
        self.end_headers()
        self.wfile.write(
            _METRICS
            if self.path == "/metrics"
            else json.dumps({"path": self.path}).encode()
        )

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of this host, in an environment whose proxies are dead."""
    dead = f"http://127.0.0.1:{free_port()}"
    for name in (
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.setenv(name, dead)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    answering = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(
        target=answering.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    yield f"http://127.0.0.1:{answering.server_port}"
    answering.shutdown()
    answering.server_close()


def test_the_loopback_interface_is_never_asked_for_through_a_proxy(
    server: str, tmp_path: Path
) -> None:
    with pytest.raises(OSError):
        urllib.request.build_opener(urllib.request.ProxyHandler()).open(
            server, timeout=5
        )
    assert request(f"{server}/health") == {"path": "/health"}
    assert request(f"{server}/metrics") is None
    endpoint = Endpoint(VLLM, "m", fetch_from(server), tmp_path / "server.log")
    assert endpoint.counters() == {"vllm:generation_tokens_total": 5.0}
    assert endpoint.work(5.0).tokens == 5.0
    _wait_for_endpoint("vllm", f"{server}/metrics", deadline=0.0, limit_s=1.0)


@pytest.mark.parametrize("named", ["load generator", "server"])
def test_programs_of_a_run_are_told_to_reach_it_directly(
    server: str, tmp_path: Path, named: str
) -> None:
    env = (
        guidellm.environment(2)
        if named == "load generator"
        else server_environment({}, tmp_path)
    )
    # A campaign may hand proxies on; they are for others than this host.
    env |= {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"}
    ask = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).status)"
    done = subprocess.run(
        [sys.executable, "-c", ask, server], env=env, capture_output=True, text=True
    )
    assert done.stdout.strip() == "200", done.stderr


def test_what_is_no_good_answer_is_one_error(server: str) -> None:
    with pytest.raises(HttpError) as error:
        fetch(f"{server}/missing")
    assert error.value.facts == {
        "method": "GET",
        "url": f"{server}/missing",
        "status": 404,
    }
    with pytest.raises(HttpError) as error:
        fetch(f"http://127.0.0.1:{free_port()}/", timeout_s=2.0)
    assert error.value.facts["status"] is None
