"""Another process takes the server's port between its choice and the start; it must never be measured in its place."""

import contextlib
import errno
import http.server
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from tests.support.fault_chain import stand_in_environment

from kveval.engines.local import server as local
from kveval.engines.local.deployer import HostDeployer
from kveval.engines.local.server import PortTaken
from kveval.host.cores import divided, usable
from kveval.host.ports import foreign_listeners, require_own_port
from kveval.host.processes import supervisor

ENV = {
    "STAND_IN_VERSION": "0.32.0",
    "STAND_IN_MODEL": "tiny",
    "STAND_IN_TOKENS": "17920",
}


class SameAnswers(http.server.BaseHTTPRequestHandler):
    """What another measurement's server would say: the very version and model that are expected."""

    def do_GET(self) -> None:
        body = {
            "/version": b'{"version": "0.32.0"}',
            "/v1/models": b'{"data": [{"id": "tiny"}]}',
        }.get(self.path, b"")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def another_server() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SameAnswers)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}
    )
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@contextlib.contextmanager
def silent_listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.fixture
def deployer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[str], None]], HostDeployer]]:
    # Whoever holds the port may accept and never answer.
    monkeypatch.setattr(local, "_HEALTH_ANSWER_S", 0.3)
    specification = SimpleNamespace(
        argv=["--port", "{port}"],
        env=ENV,
        versions={"vllm": "0.32.0"},
        sidecars=(),
        file_tier=False,
        fs_dir=None,
        random_weights=False,
        model=SimpleNamespace(served_name="tiny", folder=None),
        budget=SimpleNamespace(device_tokens=17920, host_bytes=0, split={}),
        workload=SimpleNamespace(first_prompt_tokens=16),
    )
    environment = stand_in_environment(tmp_path / "server")
    job = SimpleNamespace(
        specification=specification,
        server_environment=environment,
        secrets=(),
        required_names=[],
    )
    (tmp_path / "raw").mkdir()
    with (
        supervisor(tmp_path / "registry.json") as processes,
        contextlib.ExitStack() as stack,
    ):

        def make(say: Callable[[str], None]) -> HostDeployer:
            made = HostDeployer(
                job, environment, divided(usable()), tmp_path, processes, say
            )  # type: ignore[arg-type]
            return stack.enter_context(contextlib.closing(made))

        yield make


@pytest.mark.parametrize("taker", [another_server, silent_listener])
def test_a_port_taken_before_the_start_is_told_and_another_chosen(
    deployer: Callable[..., HostDeployer],
    taker: Callable[[], contextlib.AbstractContextManager[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    with taker() as taken:
        chosen = iter([taken, local.free_port()])
        monkeypatch.setattr(local, "free_port", lambda: next(chosen))
        server = deployer(said.append).start()
        assert not server.url.endswith(f":{taken}")
        server.require_alive()
    assert len(said) == 1
    assert "server.log" in said[0]
    if taker is another_server:
        me = psutil.Process()
        assert f"port {taken} " in said[0]
        assert f"process {me.pid} ({me.name()})" in said[0]
    else:
        assert os.strerror(errno.EADDRINUSE) in said[0]


def test_a_port_taken_at_a_restart_is_an_error_because_the_recording_reads_it(
    deployer: Callable[..., HostDeployer], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = deployer(lambda text: None)
    port = int(made.start().url.rpartition(":")[2])
    made.close()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTaken) as error:
        made.start()
    assert error.value.facts["exit_code"] == 1


def test_only_other_listeners_are_strangers() -> None:
    with silent_listener() as port:
        assert foreign_listeners(port, [os.getpid()]) == []
        name = f"process {os.getpid()} ({psutil.Process().name()})"
        assert foreign_listeners(port, []) == [name]
        require_own_port(port, [os.getpid()], PortTaken, "the server", Path("x.log"))
        with pytest.raises(
            PortTaken, match=r"the server was taken in the meantime .*; see x\.log"
        ) as error:
            require_own_port(port, [], PortTaken, "the server", Path("x.log"))
        assert error.value.facts == {"port": port, "by": [name]}
    assert foreign_listeners(port, []) == []
