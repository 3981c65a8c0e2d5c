"""A Prometheus that scrapes already: what it has is kept in the long form, and what it lacks or garbles is said."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.config_files import CONFIG, changed, ids, load
from tests.support.described import vllm

from kveval.campaign.campaign_file import PrometheusServer
from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config
from kveval.engines.local.recorder import HostRecorder
from kveval.pcp.direct.prometheus import Exporter
from kveval.pcp.direct.ranges import RANGES_FILE, Ranges, read_ranges
from kveval.pcp.direct.samples import DirectFile
from kveval.tables.levels.recording import convert_recording
from kveval.tables.system.metrics import SystemRecording
from kveval.workflow.doctor.local import prometheus_findings
from pcp_parquet.parquet.joining import join
from pcp_parquet.parquet.reading import LongFile, series

START_S, END_S = 1_700_000_000, 1_700_000_300
UTIL = "DCGM_FI_DEV_GPU_UTIL"
METRIC = f"openmetrics.dcgm.{UTIL}"
Answer = Callable[[dict[str, str]], Any]


class Prometheus(http.server.BaseHTTPRequestHandler):
    """A server that answers as `answer` does: a document, or bytes as they are."""

    answer: ClassVar[Answer]
    asked: ClassVar[list[dict[str, str]]]
    tokens: ClassVar[list[str | None]]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.asked.append({"path": parts.path, **query})
        self.tokens.append(self.headers.get("Authorization"))
        found = type(self).answer(query)
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(200 if found != b"" else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def handler() -> type[Prometheus]:
    return type("Own", (Prometheus,), {"asked": [], "tokens": []})


@pytest.fixture
def url(handler: type[Prometheus]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def matrix(*entries: tuple[dict[str, str], list[list[Any]]], **more: Any) -> Any:
    result = [{"metric": labels, "values": values} for labels, values in entries]
    return {
        "status": "success",
        "data": {"resultType": "matrix", "result": result},
        **more,
    }


def gpus(query: dict[str, str], count: int = 2, **labels: str) -> Any:
    times = range(int(query["start"]), int(query["end"]) + 1)
    return matrix(
        *(
            (
                {"__name__": UTIL, "gpu": str(number), **labels},
                [[time, str(10 * number + time % 2)] for time in times],
            )
            for number in range(count)
        )
    )


def read(url: str, *selectors: str, end_s: float = END_S, key: str = "") -> Ranges:
    return read_ranges(url, {"dcgm": selectors or (UTIL,)}, START_S, end_s, key)


def test_series_are_kept_under_the_names_that_their_exporter_has_in_recordings(
    handler: type[Prometheus], url: str, tmp_path: Path
) -> None:
    handler.answer = staticmethod(gpus)
    ranges = read(url, key="sesame")
    assert (ranges.series, ranges.values, ranges.problems) == (2, 602, [])
    (asked,) = handler.asked
    assert asked["path"] == "/api/v1/query_range"
    assert (asked["query"], float(asked["step"])) == (UTIL, 1)
    assert handler.tokens == ["Bearer sesame"]
    ranges.write(tmp_path / "ranges.parquet", "host")
    frame = series(tmp_path / "ranges.parquet", METRIC)
    assert list(frame["instance"].cat.categories) == ["0 gpu:0", "1 gpu:1"]
    assert len(frame) == 602
    assert frame["timestamp"].min().timestamp() == START_S
    assert frame["timestamp"].max().timestamp() == END_S
    assert set(frame[frame["instance"] == "1 gpu:1"]["value"]) == {10.0, 11.0}


def test_a_long_run_is_asked_for_in_parts_and_a_series_is_counted_once(
    handler: type[Prometheus], url: str
) -> None:
    handler.answer = staticmethod(lambda query: gpus(query, 1))
    ranges = read(url, end_s=START_S + 25_000)
    assert len(handler.asked) == 3
    assert all(int(part["end"]) - int(part["start"]) < 11_000 for part in handler.asked)
    assert (ranges.series, ranges.values) == (1, 25_001)
    assert len(ranges.samples) == 25_001


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda query: b"", "no answer (HTTP Error 503"),
        (lambda query: json.dumps(gpus(query)).encode()[:-40], "cut off"),
        (lambda query: b"<html>sign in</html>", "no JSON"),
        (lambda query: {"status": "error", "error": "x"}, "not that of a Prometheus"),
        (lambda query: ["success"], "not that of a Prometheus"),
        (lambda query: matrix(), "no series matches"),
        (lambda query: matrix(({"gpu": "0"}, [[START_S, "1"]])), "computed"),
        (lambda query: matrix(({"__name__": UTIL}, [[START_S, "x"]])), "values"),
        (lambda query: matrix(({"__name__": UTIL}, [["x"]])), "values"),
        (
            lambda query: matrix(({"__name__": UTIL}, [[START_S, "NaN"]])),
            "no series matches",
        ),
        (
            lambda query: {
                "status": "success",
                "data": {"resultType": "vector", "result": []},
            },
            "answered with a vector",
        ),
        (
            lambda query: matrix(({"__name__": UTIL}, [[START_S - 900, "1"]])),
            "no series matches",
        ),
    ],
)
def test_an_answer_without_usable_values_is_said_and_the_next_selector_asked_for(
    handler: type[Prometheus], url: str, answer: Answer, problem: str
) -> None:
    handler.answer = staticmethod(
        lambda query: gpus(query) if query["query"] == "good" else answer(query)
    )
    ranges = read(url, "bad", "good")
    assert ranges.series == 2
    assert ranges.values == 602
    assert any(one.startswith("bad: ") and problem in one for one in ranges.problems)
    assert not any(one.startswith("good: ") for one in ranges.problems)
    assert url not in "".join(ranges.problems)


def test_a_server_that_is_not_there_costs_the_series_alone() -> None:
    ranges = read("http://127.0.0.1:9")
    assert ranges.series == 0
    (problem,) = ranges.problems
    assert "no answer" in problem


@pytest.mark.parametrize(("begin", "end"), [(90, 300), (0, 200)])
def test_a_series_that_came_late_or_ended_early_is_kept_and_said(
    handler: type[Prometheus], url: str, begin: int, end: int
) -> None:
    values = [[START_S + second, "1"] for second in range(begin, end)]
    handler.answer = staticmethod(lambda query: matrix(({"__name__": UTIL}, values)))
    ranges = read(url)
    assert ranges.values == end - begin
    (problem,) = ranges.problems
    assert "1 of 1 series are missing for a part of the time" in problem


def test_values_of_other_times_in_any_order_and_warnings_are_handled(
    handler: type[Prometheus], url: str, tmp_path: Path
) -> None:
    values = [[START_S + second, str(second)] for second in range(-50, 351)]
    values.reverse()
    document = matrix(({"__name__": UTIL}, values), warnings=["results truncated"])
    handler.answer = staticmethod(lambda query: document)
    ranges = read(url)
    assert ranges.problems == [
        f"{UTIL}: results truncated",
        f"{UTIL}: 100 values of other times left out",
    ]
    ranges.write(tmp_path / "ranges.parquet", "host")
    assert list(series(tmp_path / "ranges.parquet", METRIC)["value"]) == [
        float(second) for second in range(301)
    ]


# --- beside the recording


def recording(path: Path, metric: str, seconds: int = 5, host: str = "host") -> None:
    exporter, file = Exporter("vllm"), DirectFile(path, host)
    for second in range(seconds):
        moment_ns = (START_S + second) * 10**9
        file.add(moment_ns, [exporter.sample(metric, {"a": "1"}, float(second))])
    file.close()


def test_what_both_have_is_read_from_one_file_with_the_facts_of_the_recording(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    recording(first, "one")
    recording(second, "two", 3, "prometheus")
    before = LongFile(first).archive()
    join(first, second, first)
    joined = LongFile(first)
    assert list(joined.metrics()) == ["openmetrics.vllm.one", "openmetrics.vllm.two"]
    assert joined.archive().rows == before.rows + 3
    assert (joined.archive().host, joined.archive().end_ns) == (
        before.host,
        before.end_ns,
    )
    for name, values in (("one", [0, 1, 2, 3, 4]), ("two", [0, 1, 2])):
        frame = series(first, f"openmetrics.vllm.{name}")
        assert list(frame["value"]) == values
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_a_recording_in_nanoseconds_stays_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    recording(first, "one")
    recording(second, "two")
    table = pq.read_table(first)
    place = table.schema.get_field_index("timestamp")
    finer = pa.field("timestamp", pa.timestamp("ns", tz="UTC"), nullable=False)
    about = pq.read_metadata(first).metadata
    del about[b"ARROW:schema"]
    table = table.cast(table.schema.set(place, finer))
    pq.write_table(table.replace_schema_metadata(about), first)
    join(first, second, first)
    for name in ("one", "two"):
        frame = series(first, f"openmetrics.vllm.{name}")
        assert list(frame["value"]) == [0, 1, 2, 3, 4]
        assert frame["timestamp"].min().timestamp() == START_S


def test_a_metric_that_both_have_is_that_of_the_recording(tmp_path: Path) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    recording(first, "one")
    recording(second, "one", 3)
    join(first, second, first)
    assert list(series(first, "openmetrics.vllm.one")["value"]) == [0, 1, 2, 3, 4]
    assert LongFile(first).archive().rows == 5


def test_the_report_s_metrics_are_read_from_what_a_prometheus_had(
    handler: type[Prometheus], url: str, tmp_path: Path
) -> None:
    handler.answer = staticmethod(gpus)
    own, more = tmp_path / "own.parquet", tmp_path / "more.parquet"
    recording(own, "one", 301)
    read(url).write(more, "host")
    join(own, more, own)
    catalogue = load_config(CONFIG / "config.yaml", CONFIG).catalogue
    name = "gpu_utilisation_percent"
    metrics = {name: catalogue.metrics[name]}
    window = START_S * 10**9, END_S * 10**9
    reduced = SystemRecording(own, metrics, vllm("0.32.0")).reduce(window)
    assert reduced.values[name] == pytest.approx((0.5 + 10.5) / 2, abs=0.01)


def test_the_table_of_a_run_has_what_its_prometheus_had(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    facts = {"recording": {"archive": "raw/recording.parquet"}}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    recording(tmp_path / "raw" / "recording.parquet", "one")
    convert_recording(tmp_path, tmp_path / "alone.parquet")
    recording(tmp_path / RANGES_FILE, "two")
    convert_recording(tmp_path, tmp_path / "both.parquet")
    assert list(LongFile(tmp_path / "alone.parquet").metrics()) == [
        "openmetrics.vllm.one"
    ]
    assert list(LongFile(tmp_path / "both.parquet").metrics()) == [
        "openmetrics.vllm.one",
        "openmetrics.vllm.two",
    ]


# --- in a campaign


def test_it_defines_no_measurement(tmp_path: Path) -> None:
    named = {"url": "http://prom:9090", "series": {"dcgm": [UTIL]}}
    files = changed(("config", "prometheus"), named)
    config = load(tmp_path / "with", files)
    assert config.campaign.prometheus is not None
    assert ids(config) == ids(
        load(tmp_path / "without", changed(("config", "seed"), 1))
    )


@pytest.mark.parametrize(
    ("named", "engine", "codes"),
    [
        ({"url": "prom:9090", "series": {"dcgm": [UTIL]}}, "local", {"no_address"}),
        ({"url": "http://prom:9090", "series": {}}, "local", {"too_short"}),
        ({"url": "http://prom:9090", "series": {"dcgm": []}}, "local", {"too_short"}),
        (
            {"url": "http://prom:9090", "series": {"dcgm": [UTIL]}},
            "kubernetes",
            {"cluster_missing", "prometheus_on_cluster"},
        ),
    ],
)
def test_what_is_no_prometheus_is_refused(
    tmp_path: Path, named: dict[str, Any], engine: str, codes: set[str]
) -> None:
    files = changed(("config", "prometheus"), named)
    with pytest.raises(ConfigError) as error:
        load(tmp_path, changed(("config", "engine"), engine, files))
    assert {problem.code for problem in error.value.problems} == codes


@pytest.mark.parametrize("answer", [gpus, lambda query: matrix()])
def test_a_run_keeps_what_is_there_and_says_what_is_not(
    handler: type[Prometheus],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
) -> None:
    handler.answer = staticmethod(answer)
    monkeypatch.setenv("OUR_TOKEN", "sesame")
    (tmp_path / "raw").mkdir()
    server = PrometheusServer(url=url, key="OUR_TOKEN", series={"dcgm": (UTIL,)})
    said: list[str] = []
    job: Any = SimpleNamespace(prometheus=server)
    parts: Any = None
    recorder = HostRecorder(job, parts, tmp_path, parts, said.append)
    said.clear()
    recorder._span_s = (START_S, END_S)
    facts = recorder.facts()["prometheus"]
    assert (tmp_path / RANGES_FILE).exists() == bool(facts["series"])
    assert [f"Prometheus: {problem}" for problem in facts["problems"]] == said
    assert bool(said) == (facts["series"] == 0)
    assert handler.tokens == ["Bearer sesame"]
    job.prometheus = None
    assert "prometheus" not in recorder.facts()


def test_the_doctor_asks_for_the_last_minute(
    handler: type[Prometheus], url: str, tmp_path: Path
) -> None:
    handler.answer = staticmethod(
        lambda query: matrix() if query["query"] == "no" else gpus(query)
    )
    named = {"url": url, "series": {"dcgm": [UTIL, "no"]}}
    config = load(tmp_path, changed(("config", "prometheus"), named))
    good, bad = prometheus_findings(config)
    assert (good.level, bad.level) == ("ok", "warning")
    assert "2 series" in good.what
    keyed = {**named, "key": "KEY_THAT_IS_NOT_SET"}
    config = load(tmp_path / "keyed", changed(("config", "prometheus"), keyed))
    (finding,) = prometheus_findings(config)
    assert (finding.level, finding.code) == ("error", "no_key")
    assert (
        list(
            prometheus_findings(load(tmp_path / "none", changed(("config", "seed"), 1)))
        )
        == []
    )
