"""GuideLLM held before its first request, for real: what it makes ahead, and that it then sends what it would have."""

import asyncio
import contextlib
import http.server
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fault_chain import REPOSITORY

from kveval.campaign.geometry import Geometry
from kveval.campaign.random_model import write_served
from kveval.host.http import free_port
from kveval.host.processes import Supervisor, supervisor
from kveval.load.guidellm import (
    Level,
    LoadError,
    LoadTarget,
    Primed,
    command,
    environment,
    priming_environment,
    run_level,
    users_environment,
)
from kveval.load.loadside import sitecustomize
from kveval.load.reports import RequestRecord
from kveval.load.reports.reading import read_report
from kveval.load.workload import workload_of

ENVIRONMENT = REPOSITORY / ".server-venv"
GUIDELLM = ENVIRONMENT / "bin" / "guidellm"
FOLDER = Path(sitecustomize.__file__).parent
WORKLOAD: dict[str, Any] = {
    "profile": "concurrent",
    "prompt_tokens": 16,
    "output_tokens": 8,
    "turns": 1,
    "prefix_tokens": 200,
    "prefix_count": 4,
    "seconds": 3,
    "warmup_s": 0,
}


GEOMETRY = {
    "architecture": "Qwen3ForCausalLM",
    "layers": 2,
    "kv_heads": 2,
    "head_dim": 64,
    "hidden_size": 256,
    "attention_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 4096,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


def test_without_its_variables_nothing_is_changed() -> None:
    code = "import sys; print([type(f).__name__ for f in sys.meta_path if type(f).__name__ == 'Holding'])"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER)}
    for extra, expected in (
        ({}, "[]"),
        ({"KVEVAL_GO": "/nowhere/go"}, "['Holding', 'Holding']"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**env, **extra},
            capture_output=True,
            text=True,
        )
        assert done.stdout.strip() == expected, done.stderr


def test_the_probe_shows_that_it_is_imported(tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(FOLDER),
        "KVEVAL_PROBE": str(tmp_path / "probe"),
    }
    subprocess.run([sys.executable, "-c", "pass"], env=env, check=True)
    assert (tmp_path / "probe").exists()


@pytest.mark.parametrize("awaited", ["earlier.ready", "own.prime"])
def test_a_generator_starts_after_an_earlier_one_or_when_it_is_its_turn(
    tmp_path: Path, awaited: str
) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(FOLDER),
        "KVEVAL_GO": str(tmp_path / "own"),
        "KVEVAL_AFTER": str(tmp_path / "earlier.ready"),
    }
    code = "import os; print('KVEVAL_AFTER' in os.environ)"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        (tmp_path / awaited).touch()
        # Those that it starts do not wait.
        assert process.communicate(timeout=30)[0] == "False\n"


def conversations(*prefixes: str) -> Iterator[Any]:
    for prefix in prefixes:
        columns = {"prefix_column": [prefix]} if prefix else {}
        turn = SimpleNamespace(request=SimpleNamespace(columns=columns))
        yield SimpleNamespace(
            nodes={
                "main_0": turn,
                "main_1": SimpleNamespace(request=SimpleNamespace(columns={})),
            }
        )


def test_conversations_are_drawn_until_every_prefix_has_come_and_none_is_lost() -> None:
    rest = conversations("a", "b", "a", "c", "d")
    drawn, prefixes = sitecustomize.draw(rest, 3)
    assert prefixes == ["a", "b", "c"]
    assert len(drawn) == 4
    assert next(rest).nodes["main_0"].request.columns == {"prefix_column": ["d"]}


def test_fewer_prefixes_than_declared_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 distinct prefixes"):
        sitecustomize.draw(itertools.cycle(list(conversations("a", "b"))), 3)


class Graph:
    """A conversation as GuideLLM has it, as far as it is used."""

    def __init__(self, turns: int) -> None:
        self.nodes = {
            f"main_{turn}": SimpleNamespace(settings=SimpleNamespace())
            for turn in range(turns)
        }

    def subgraph_for_nodes(self, names: set[str]) -> "Graph":
        self.nodes = {name: self.nodes[name] for name in sorted(names)}
        return self

    @property
    def pauses_s(self) -> list[float | None]:
        return [
            getattr(node.settings, "requeue_delay", None)
            for node in self.nodes.values()
        ]


USERS: dict[str, Any] = {"users": 4, "turns": 3, "seed": 7, "pause": {"mean": 2.5}}


def test_there_is_a_pause_after_each_answer_but_the_last() -> None:
    graphs = sitecustomize.of_users((Graph(3) for _ in itertools.count()), USERS)
    first = [next(graphs).pauses_s for _ in range(4)]
    # As if these users had been there before.
    assert first == [[2.5, 2.5, None], [2.5, None], [None], [2.5, 2.5, None]]
    assert next(graphs).pauses_s == [2.5, 2.5, None]


@pytest.mark.parametrize("distribution", ["normal", "lognormal"])
def test_pauses_are_drawn_with_their_mean_and_spread_for_all_arms_alike(
    distribution: str,
) -> None:
    pause = {"mean": 20.0, "stdev": 5.0, "distribution": distribution}
    drawn = sitecustomize.pauses(pause, 7, 3, 20_001)
    assert drawn == sitecustomize.pauses(pause, 7, 3, 20_001)
    assert drawn[:9] != sitecustomize.pauses(pause, 7, 4, 10)
    mean = sum(drawn) / len(drawn)
    variance = sum((pause_s - mean) ** 2 for pause_s in drawn) / len(drawn)
    assert mean == pytest.approx(20, rel=0.02)
    assert variance**0.5 == pytest.approx(5, rel=0.05)
    wide = {"mean": 1.0, "stdev": 5.0, "distribution": distribution}
    assert min(sitecustomize.pauses(wide, 7, 3, 1000)) >= 0


def test_no_conversation_begins_while_another_one_pauses() -> None:
    class Worker:
        """A worker process of GuideLLM, with two requests at once, and three conversations that wait."""

        def __init__(self) -> None:
            self.async_limit = 2
            self.turns_queue: list[str] = []
            self.messaging = SimpleNamespace(get=self.receive)
            self.left = ["a", "b", "c"]

        async def receive(self, timeout: float | None = None) -> str:
            return self.left.pop(0)

        async def _processing_startup(self) -> None:
            pass

    async def begun() -> list[str]:
        worker = Worker()
        await worker._processing_startup()
        for _ in range(2):
            worker.turns_queue.append(await worker.messaging.get())
        with pytest.raises(asyncio.TimeoutError):
            await worker.messaging.get(0.01)
        worker.turns_queue.remove("a")
        worker.turns_queue.append(await worker.messaging.get(0.01))
        return worker.turns_queue

    sitecustomize.keep_present(Worker)
    assert asyncio.run(begun()) == ["b", "c"]


class ChatServer(http.server.BaseHTTPRequestHandler):
    """Answers chats at the interface of OpenAI, those alone that have the key, where there is one."""

    protocol_version = "HTTP/1.1"
    answer_s = 0.2
    key = ""

    def do_GET(self) -> None:
        self.answer({})

    def do_POST(self) -> None:
        chat = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.key and self.headers["Authorization"] != f"Bearer {self.key}":
            self.send_error(401)
            return
        time.sleep(self.answer_s)
        tokens = int(chat.get("max_completion_tokens") or chat["max_tokens"])
        usage = {"prompt_tokens": 16, "completion_tokens": tokens}
        if not chat.get("stream"):
            self.answer({"choices": [], "usage": usage})
            return
        word = {"choices": [{"index": 0, "delta": {"content": "word "}}]}
        events = [*[word] * tokens, {"choices": [], "usage": usage}]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self.send(f"{''.join(lines)}data: [DONE]\n\n", "text/event-stream")

    def answer(self, content: dict[str, Any]) -> None:
        self.send(json.dumps(content), "application/json")

    def send(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def chat_server(port: int = 0) -> Iterator[str]:
    """Run a server, whose start costs nothing beside that of GuideLLM's own; offer its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), ChatServer) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.e2e
@pytest.mark.skipif(
    not GUIDELLM.exists(), reason="no server environment: bash scripts/setup.sh server"
)
def test_guidellm_makes_its_prompts_before_there_is_a_server_and_sends_when_it_is_told(
    tmp_path: Path,
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    model = write_served(Geometry.model_validate(GEOMETRY), tmp_path / "model")
    report, go = tmp_path / "report.json", tmp_path / "go"
    argv = command(
        str(GUIDELLM),
        workload_of(WORKLOAD),
        Level(2, 0, 7),
        LoadTarget(url, "tiny", model),
        report,
    )
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(FOLDER),
    }
    env |= {
        "KVEVAL_GO": str(go),
        "KVEVAL_BEFORE_SERVER": "1",
        "GUIDELLM__MAX_WORKER_PROCESSES": "1",
        "TMPDIR": str(tmp_path),
    }
    log = tmp_path / "guidellm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(ENVIRONMENT / "bin" / "python"), *argv],
            env=env,
            cwd=tmp_path,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + 300
    while not sitecustomize.ready_file(go).exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGSTOP)
    with chat_server(port):
        assert not report.exists()
        os.killpg(process.pid, signal.SIGCONT)
        told = time.time()
        go.touch()
        assert process.wait(timeout=60) == 0, log.read_text()
    benchmark = json.loads(report.read_text())["benchmarks"][0]
    assert benchmark["start_time"] >= told
    assert benchmark["start_time"] - told < 5
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] > 0
    assert totals["errored"] == 0
    assert not re.search("Traceback", log.read_text())


@pytest.mark.e2e
@pytest.mark.skipif(
    not GUIDELLM.exists(), reason="no server environment: bash scripts/setup.sh server"
)
def test_every_prefix_is_sent_once_before_the_load_and_all_with_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ChatServer, "key", "sesame")
    model = write_served(Geometry.model_validate(GEOMETRY), tmp_path / "model")
    workload = workload_of({**WORKLOAD, "prime": True})
    level, report = Level(2, 0, 7), tmp_path / "report.json"
    env = {**environment(2), "HOME": str(tmp_path), "PYTHONPATH": str(FOLDER)}
    told: list[float] = []

    def level_run(processes: Supervisor, url: str) -> Primed | None:
        target = LoadTarget(url, "tiny", model)
        go = tmp_path / f"go-{len(told)}"
        return run_level(
            processes,
            command(str(GUIDELLM), workload, level, target, report),
            report,
            tmp_path / "guidellm.log",
            limit_s=400,
            sending_limit_s=60,
            env=env
            | {"KVEVAL_GO": str(go), sitecustomize.KEY_VARIABLE: ChatServer.key}
            | priming_environment(workload, level, target),
            watch=lambda elapsed_s: None,
            sending=lambda: told.append(time.time()),
            go=go,
        )[1]

    with supervisor(tmp_path / "registry.json") as processes, chat_server() as url:
        # GuideLLM 0.8.1 may hang once it was told to send; a measurement tries a level twice, too.
        primed = None
        with contextlib.suppress(LoadError):
            primed = level_run(processes, url)
        primed = primed or level_run(processes, url)
    assert primed is not None
    assert primed.prefixes == 4
    benchmark = json.loads(report.read_text())["benchmarks"][0]
    assert benchmark["start_time"] >= told[-1]
    assert benchmark["metrics"]["request_totals"]["successful"] > 0
    for file in (report, tmp_path / "guidellm.log"):
        assert ChatServer.key not in file.read_text()


@pytest.mark.e2e
@pytest.mark.skipif(
    not GUIDELLM.exists(), reason="no server environment: bash scripts/setup.sh server"
)
def test_so_many_users_are_present_and_pause_between_their_questions(
    tmp_path: Path,
) -> None:
    users, pause_s = 6, 1.0
    model = write_served(Geometry.model_validate(GEOMETRY), tmp_path / "model")
    workload = workload_of(
        {
            **WORKLOAD,
            **{"profile": "users", "prefix_tokens": 0, "prefix_count": 0},
            **{"document_tokens": 300, "turns": 3, "pause_s": pause_s, "seconds": 15},
        }
    )
    level, report = Level(users, 0, 7), tmp_path / "report.json"
    env = {**environment(8), "HOME": str(tmp_path), "PYTHONPATH": str(FOLDER)}
    with supervisor(tmp_path / "registry.json") as processes, chat_server() as url:
        target = LoadTarget(url, "tiny", model)
        run_level(
            processes,
            command(str(GUIDELLM), workload, level, target, report),
            report,
            tmp_path / "guidellm.log",
            limit_s=400,
            sending_limit_s=60,
            env=env | users_environment(workload, level),
            watch=lambda elapsed_s: None,
            sending=lambda: None,
        )
    found = read_report(report).levels[0]
    assert not found.errored
    sessions: dict[str | None, list[RequestRecord]] = {}
    for record in found.requests:
        if record.start is not None:
            sessions.setdefault(record.conversation, []).append(record)
    spans = []
    for session in sessions.values():
        session.sort(key=lambda record: record.turn or 0)
        for before, after in itertools.pairwise(session):
            assert before.end is not None
            assert after.start is not None
            assert after.start - before.end == pytest.approx(pause_s, abs=0.5)
        spans.append((session[0].start or 0.0, session[-1].end or found.end))
    assert len(spans) > 2 * users
    # Sessions are replaced as soon as they end.
    for moment in range(3, 12):
        at = found.start + moment + 0.5
        present = sum(begin <= at <= end for begin, end in spans)
        assert users - 1 <= present <= users
