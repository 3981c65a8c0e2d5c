"""Recording without PCP: names and units are PCP's, held against PCP itself where it is installed."""

import http.server
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fault_chain import needs_pcp

from kveval.host.processes import supervisor
from kveval.pcp.direct import samples
from kveval.pcp.direct.host import host_samples
from kveval.pcp.direct.prometheus import Exporter, describe
from kveval.pcp.direct.recorder import direct_recording
from kveval.pcp.direct.samples import About, DirectFile, DirectSample
from kveval.pcp.installation import RecordingError
from kveval.pcp.recording import RecordingSettings, recording
from kveval.pcp.verification import verify_recording
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.parquet.reading import LongFile, series

TEXT = """# HELP vllm:num_requests_running Number of requests running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# HELP vllm:generation_tokens_total Tokens.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="m",engine="0"} 120.0
# TYPE vllm:e2e_seconds histogram
vllm:e2e_seconds_bucket{le="0.5"} 1.0
vllm:e2e_seconds_bucket{le="+Inf"} 2.0
vllm:e2e_seconds_count 2.0
vllm:e2e_seconds_sum 1.5
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 4096.0
"""
RUNNING = "openmetrics.vllm.vllm.num_requests_running"


class Endpoint(http.server.BaseHTTPRequestHandler):
    """An exporter that always says the same, and tells when it was asked often enough."""

    asked = 0
    enough = threading.Event()

    def do_GET(self) -> None:
        Endpoint.asked += 1
        if Endpoint.asked >= 24:
            Endpoint.enough.set()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(TEXT.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def test_an_exporter_s_samples_have_pcp_s_names_instances_and_units() -> None:
    exporter = Exporter("vllm")
    found = {(one.metric, one.instance): one for one in exporter.read(TEXT)}
    assert found[RUNNING, "0 engine:0 model_name:m"].value == 3
    tokens = found[
        "openmetrics.vllm.vllm.generation_tokens_total", "0 engine:0 model_name:m"
    ]
    assert (tokens.value, tokens.about.semantics) == (120, "counter")
    assert found[
        "openmetrics.vllm.vllm.e2e_seconds_bucket", "1 le:+Inf"
    ].about == About("counter", "count", "")
    assert found["openmetrics.vllm.vllm.e2e_seconds_sum", None].about.units == "sec"
    assert found["openmetrics.vllm.process_resident_memory_bytes", None].about == About(
        "instant", "byte", ""
    )
    assert list(exporter.read(TEXT)) == list(found.values())


def test_what_is_no_text_of_an_exporter_is_refused() -> None:
    with pytest.raises(ValueError):
        list(Exporter("vllm").read("<html>busy</html>\n"))


def test_a_summary_s_count_is_a_number_and_its_sum_has_the_unit() -> None:
    assert describe("wait_seconds_count", "summary", "Wait.\nMore") == About(
        "counter", "count", "Wait."
    )
    assert describe("wait_seconds_sum", "summary", "").units == "sec"


def test_the_host_s_counters_are_those_that_every_run_needs() -> None:
    found = {one.metric: one for one in host_samples([os.getpid(), 2**22 + 1])}
    assert {
        "kernel.all.cpu.user",
        "mem.util.available",
        "kernel.percpu.cpu.idle",
        "proc.memory.rss",
    } <= set(found)
    assert found["kernel.all.cpu.user"].about == About("counter", "millisec")
    assert (
        0
        < found["mem.util.available"].value
        <= found["mem.util.used"].value + found["mem.util.free"].value
    )
    assert (
        found["proc.memory.rss"].instance
        == f"{os.getpid():06d} {Path('/proc/self/comm').read_text().strip()}"
    )


def test_a_file_is_the_same_however_often_it_was_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = About("counter", "byte", "Bytes")
    paths = [tmp_path / "once.parquet", tmp_path / "often.parquet"]
    for path, rows in zip(paths, (10**6, 1), strict=True):
        monkeypatch.setattr(samples, "FLUSH_ROWS", rows)
        file = DirectFile(path, "here")
        for second in range(1, 6):
            file.add(
                second * 10**9,
                [
                    DirectSample("b", "1 x", second, about),
                    DirectSample("a", None, 7, about),
                ],
            )
        file.close()
    once, often = (series(path, "b") for path in paths)
    assert once["value"].to_list() == often["value"].to_list() == [1, 2, 3, 4, 5]
    assert set(once["instance"]) == {"1 x"}
    info = LongFile(paths[0])
    assert (
        info.metric("b").units,
        info.metric("b").semantics,
        info.metric("a").indom,
    ) == ("byte", "counter", None)
    assert (info.archive().start_ns, info.archive().end_ns, info.archive().rows) == (
        10**9,
        5 * 10**9,
        10,
    )
    facts = verify_recording(
        paths[0], start=1, end=5, required=["a", "b"], windows=[(1, 5)]
    )
    assert (facts.metrics, facts.samples) == (2, {"a": 5, "b": 5})
    for wanted, code in (
        ({"start": 1, "end": 60, "required": ["a"]}, "window_not_covered"),
        ({"start": 1, "end": 5, "required": ["c"]}, "metrics_missing"),
        (
            {"start": 1, "end": 5, "required": ["a"], "windows": [(1, 60)]},
            "too_few_samples",
        ),
    ):
        with pytest.raises(RecordingError) as error:
            verify_recording(paths[0], **wanted)  # type: ignore[arg-type]
        assert error.value.code == code


class Stopped:
    """A value at which the recorder is told to stop."""

    def __float__(self) -> float:
        raise KeyboardInterrupt


def test_a_recorder_that_is_stopped_amid_a_sample_keeps_those_before(
    tmp_path: Path,
) -> None:
    about = About("counter", "byte", "Bytes")
    file = DirectFile(tmp_path / "cut.parquet", "here")
    stop = DirectSample("b", None, Stopped(), about)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        file.add(10**9, [DirectSample("a", None, 7, about), stop])
    file.close()
    assert series(tmp_path / "cut.parquet", "a")["value"].to_list() == [7]
    assert LongFile(tmp_path / "cut.parquet").archive().rows == 1


def test_an_endpoint_that_is_silent_is_named(tmp_path: Path) -> None:
    settings = RecordingSettings(0.2, {"vllm": "http://127.0.0.1:9/metrics"})
    with (
        supervisor(tmp_path / "registry") as processes,
        pytest.raises(RecordingError) as error,
        direct_recording(tmp_path / "direct", settings, processes, ready_timeout_s=2),
    ):
        pass
    assert error.value.code == "endpoint_silent"


@needs_pcp
def test_pcp_and_the_exporters_alone_record_the_same(tmp_path: Path, url: str) -> None:
    settings = RecordingSettings(0.25, {"vllm": url}, [os.getpid()])
    with (
        supervisor(tmp_path / "registry") as processes,
        direct_recording(tmp_path / "direct", settings, processes) as direct,
        recording(tmp_path / "pcp", settings, processes) as pcp,
    ):
        begin = time.time()
        assert Endpoint.enough.wait(30)
        end = time.time()
        pcp.stop()
        direct.stop()
    required = [RUNNING, "kernel.all.cpu.user", "mem.util.available"]
    window = {"start": begin, "end": end, "windows": [(begin, end)], "interval_s": 0.25}
    verify_recording(pcp.archive, required=required, **window)  # type: ignore[arg-type]
    verify_recording(direct.archive, required=required, **window)  # type: ignore[arg-type]
    convert(pcp.archive.parent, tmp_path / "pcp.parquet")
    theirs, ours = (
        LongFile(path) for path in (tmp_path / "pcp.parquet", direct.archive)
    )
    assert set(ours.metrics()) <= set(theirs.metrics())
    for name in sorted(ours.metrics()):
        one, other = ours.metric(name), theirs.metric(name)
        assert (name, one.semantics, one.units) == (name, other.semantics, other.units)
    for name in (
        n
        for n in ours.metrics()
        if n.startswith(("openmetrics", "kernel.percpu", "network"))
    ):
        known = set(series(tmp_path / "pcp.parquet", name)["instance"].dropna())
        assert set(series(direct.archive, name)["instance"].dropna()) <= known, name
