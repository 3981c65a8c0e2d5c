"""The whole chain for real: vLLM, GuideLLM and PCP on this machine, from a campaign file to REPORT.md."""

import json
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml
import zstandard
from PIL import Image
from tests.support.job_status import leave_status
from tests.support.paths import REPOSITORY
from tests.support.report_text import whole_report
from tests.support.tree import Tree, served

from kveval.measure.status import status_path
from kveval.pcp.installation import RecordingError, require_pcp
from pcp_parquet.parquet.reading import describe, series

pytestmark = pytest.mark.e2e
CELL = "Qwen3-0.6B/native-offload/10000"
RESULTS = "results/campaigns/smoke"


def missing() -> str | None:
    if not (REPOSITORY / ".server-venv" / "bin" / "guidellm").exists():
        return "no server environment: bash scripts/setup.sh server"
    try:
        require_pcp()
    except RecordingError as error:
        return str(error)
    return None


needs_chain = pytest.mark.skipif(missing() is not None, reason=missing() or "")


# Of twelve prefixes of 500 tokens, of which the device holds eight, in conversations of two requests: by as many
# requests, prefixes have come again. Short, as caches are primed four times.
PREFIXES = {"prefix_tokens": 500, "prefix_count": 12, "output_tokens": 16}
SERVER = {
    "device_blocks": 280,
    "max_model_len": 4096,
    "env": {"VLLM_WORKER_MULTIPROC_METHOD": "fork"},
}
REQUESTS = 30
SECONDS = (12, 56)


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Tree:
    """A copy of the workflow in which a small campaign has run: two arms, one run, two levels of enough requests."""
    campaign = yaml.safe_load(
        (REPOSITORY / "config" / "campaigns" / "smoke.yaml").read_text()
    )
    campaign["server"] |= SERVER
    campaign["workloads"]["smoke"] |= PREFIXES
    made = Tree(
        tmp_path_factory.mktemp("e2e") / "repository",
        campaign,
        environment=REPOSITORY / ".server-venv",
    )
    for seconds in SECONDS:
        campaign["workloads"]["smoke"]["seconds"] = seconds
        made.configure(campaign)
        # The other arm and the report only once levels are long enough.
        run(made, f"{RESULTS}/{CELL}/run-1/measurement.json")
        if served(made.run_json(CELL)) >= REQUESTS:
            run(made, "report")
            return made
    raise AssertionError(
        f"{served(made.run_json(CELL)):.0f} requests in {SECONDS[-1]} s: this machine is too busy"
    )


def run(tree: Tree, target: str) -> None:
    code, output = tree.run(target, limit_s=1800)
    assert code == 0, output[-6000:]


@pytest.fixture(scope="module")
def finished(tree) -> Path:
    return tree.folder


@pytest.fixture(scope="module")
def run_json(tree) -> dict:
    return tree.run_json(CELL)


@needs_chain
def test_nothing_is_left_running(tree, finished):
    assert any("vllm.entrypoints" in line for line in tree.traces[0].seen())
    assert tree.left() == []
    assert list((finished / "results" / "measurements").glob("partial/*/")) == []


@needs_chain
def test_the_server_was_vllm_with_exactly_the_arms_arguments(run_json):
    assert run_json["versions"]["vllm"].startswith("0.32.0")
    connector = json.loads(
        run_json["server"]["argv"][
            run_json["server"]["argv"].index("--kv-transfer-config") + 1
        ]
    )
    assert (
        connector["kv_connector_extra_config"]["cpu_bytes_to_use"] == 10000 * 16 * 1024
    )
    assert run_json["server"]["facts"]["kv_cache_tokens"] == 280 * 16


@needs_chain
def test_the_engine_was_forked_and_the_worker_was_not(finished, run_json):
    stored = finished / "results" / "measurements" / run_json["measurement"]
    with (stored / "run-1" / "raw" / "server.log.zst").open("rb") as packed:
        log = zstandard.ZstdDecompressor().stream_reader(packed).read().decode()
    assert "kveval: the engine is forked, the worker is not" in log
    # Each process that imports vLLM anew registers the loader of random weights.
    assert log.count("Load format `dummy` is already registered") == 2


@needs_chain
def test_the_offload_was_really_exercised(run_json):
    assert run_json["exercised"]["exercised"] is True
    hits = [
        level["counters"]["vllm:external_prefix_cache_hits_total"]["delta"]
        for level in run_json["levels"]
    ]
    assert max(hits) > 1000
    # Resetting the caches between levels really reset them: a level cannot hit more than it stored itself.
    for level in run_json["levels"]:
        counters = level["counters"]
        assert counters["vllm:kv_offload_store_bytes_total"]["delta"] > 0


@needs_chain
def test_what_guidellm_received_is_what_vllm_generated(finished):
    levels = pd.read_csv(finished / RESULTS / CELL / "levels.csv")
    assert list(levels["level"]) == [1, 4]
    assert (levels["requests_completed"] >= 2).all()
    assert (levels["requests_errored"] == 0).all()
    assert levels["ttft_ms_p50"].between(1, 20_000).all()
    # The server's own count is the independent witness, to within the tokens in flight at the window's edges.
    assert levels["throughput_server_difference"].abs().max() < 0.25


@needs_chain
def test_a_level_whose_streams_were_not_kept_busy_says_so(finished):
    """How busy two cores keep four streams is the machine's affair; that the check tells is ours."""
    for cell in (CELL, "Qwen3-0.6B/no-offload/0"):
        levels = pd.read_csv(finished / RESULTS / cell / "levels.csv")
        streams, in_flight = levels["level"], levels["concurrency_mean"]
        # A closed loop never has more in flight than it was told to.
        assert (in_flight <= 1.01 * streams).all()
        assert (in_flight[streams == 4] > in_flight[streams == 1].max()).all()
        warned = levels["checks_warned"].astype(object).fillna("")
        told = warned.str.split(";").map(lambda names: "closed_loop" in names)
        assert list(told) == list(in_flight < 0.95 * streams)


@needs_chain
def test_the_recording_covers_the_levels_and_keeps_units(finished, run_json):
    pcp = finished / RESULTS / CELL / "run-1" / "pcp.parquet"
    level = run_json["levels"][-1]
    window = {
        "start_ns": int(level["start"] * 1e9),
        "finish_ns": int(level["end"] * 1e9),
    }
    running = series(pcp, "openmetrics.vllm.vllm.num_requests_running", **window)
    # One sample a second over a level of 12 s; a busy machine may be late with some.
    assert len(running) >= 6
    assert running["value"].max() >= 2
    assert describe(pcp)["mem.util.available"].units == "Kbyte"
    peak = pd.read_csv(finished / RESULTS / CELL / "peak.csv").iloc[0]
    if peak["pcp_samples"] >= 6:
        assert 1 < peak["kv_cache_usage_percent"] <= 100
    else:
        assert pd.isna(peak["kv_cache_usage_percent"])


@needs_chain
def test_the_report_says_what_was_measured_and_what_cannot_be_said(finished):
    report = whole_report(finished / RESULTS)
    for part in (
        "miniature",
        "| vLLM | 0.32.0 |",
        "no-offload",
        "native-offload",
        "not assessed",
    ):
        assert part in report
    figures = sorted((finished / RESULTS / "figures").rglob("*.png"))
    wanted = {
        "throughput_by_arm",
        "ttft_by_arm",
        "hit_rates_by_tier",
        "reuse_by_tier_size",
        "level_timeline_Qwen3-0.6B",
    }
    assert {path.stem for path in figures} == wanted
    for path in figures:
        assert f"figures/{path.parent.name}/{path.name})" in report
        with Image.open(path) as picture:
            assert min(picture.size) > 200


@needs_chain
def test_a_second_run_has_nothing_to_do(tree):
    assert "Nothing to be done" in tree.run("-n", "report")[1]


@needs_chain
def test_a_report_over_what_there_is_names_what_is_missing(tree, finished):
    baseline = finished / RESULTS / "Qwen3-0.6B" / "no-offload"
    log = (
        finished
        / "logs"
        / "smoke"
        / "benchmark"
        / "Qwen3-0.6B"
        / "no-offload"
        / "0"
        / "run-1.log"
    )
    path = status_path(log)
    before = path.read_bytes()
    cause = "the server died (exit code 3)"
    leave_status(log, state="failed", message=cause)
    baseline.rename(finished / "aside")
    try:
        code, output = tree.run("report_so_far")
        assert code == 0, output[-3000:]
        report = (finished / RESULTS / "so-far" / "REPORT.md").read_text()
        assert f"no-offload: failed: {cause}" in report
        assert "native-offload 10K" in report
        assert list((finished / RESULTS / "so-far" / "figures").rglob("*.png"))
    finally:
        (finished / "aside").rename(baseline)
        path.write_bytes(before)


@needs_chain
def test_the_job_tears_down_when_it_is_asked_to_stop(tree, finished):
    """SIGTERM in the middle of a level: the job ends, the attempt is kept, nothing runs on, nothing is adopted."""
    target = f"{RESULTS}/{CELL}/run-2/measurement.json"
    job = tree.start(target, "--config", "runs=2")
    below = psutil.Process(job.pid)
    # Another measurement may have the host before this one.
    deadline = time.monotonic() + 1800
    while not any(
        "guidellm run" in line for line in lines_of(below.children(recursive=True))
    ):
        assert time.monotonic() < deadline
        assert job.poll() is None
        time.sleep(0.5)
    measuring = [
        process
        for process in below.children(recursive=True)
        if "benchmark.py" in lines_of([process])[0]
    ]
    job.send_signal(15)
    for process in measuring:
        process.terminate()
    job.communicate(timeout=300)
    assert tree.left() == []
    assert len(list((finished / "results" / "measurements" / "failed").iterdir())) == 1
    assert not list(finished.glob(f"{RESULTS}/Qwen3-0.6B/*/*/run-2/measurement.json"))


def lines_of(processes: list[psutil.Process]) -> list[str]:
    """The command lines of processes, empty for those that have ended."""
    found = []
    for process in processes:
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.Error:
            found.append("")
    return found
