"""The watches on their own: injected clocks and readings, and the thread that carries them."""

import http.server
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.engines.watchdog import (
    ClockError,
    ClockWatch,
    DiskFullError,
    StallError,
    StallWatch,
    Work,
    monitored,
    read_work,
    require_free,
)
from kveval.host.http import fetch
from kveval.stacks.vllm import VLLM

PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="x"} 9.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:generation_tokens_total{engine="1",model_name="m"} 10.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:request_generation_tokens_sum{engine="0"} 5.0
"""


class Clock:
    """A clock that stands until it is told otherwise."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def stall_watch(
    clock: Clock,
    url: str = "http://127.0.0.1:1/metrics",
    limit_s: float = 60.0,
    loaded_s: float = 0.0,
) -> StallWatch:
    def read(timeout_s: float) -> Work:
        return read_work(fetch(url, timeout_s=timeout_s).decode(), VLLM)

    return StallWatch(read, limit_s, 120.0, Path("server.log"), loaded_s, clock)


def feed(watch: StallWatch, clock: Clock, seconds: float, work: Work | None) -> None:
    """Show the same reading every five seconds."""
    end = clock.seconds + seconds
    while clock.seconds < end:
        clock.seconds += 5
        watch.observe(work)


def test_work_is_read_from_the_servers_page() -> None:
    assert read_work(PAGE, VLLM) == Work(tokens=1510.0, requests=7.0)
    assert read_work("", VLLM) == Work(0.0, 0.0)


def test_requests_without_a_token_are_borne_for_the_limit_and_no_longer(
    clock: Clock,
) -> None:
    watch = stall_watch(clock)
    watch.observe(Work(100, 4))
    feed(watch, clock, 65, Work(100, 4))
    with pytest.raises(StallError) as error:
        feed(watch, clock, 5, Work(100, 4))
    assert error.value.code == "no_token"
    assert error.value.facts == {
        "requests": 4,
        "lasted_s": 65,
        "limit_s": 60,
        "log": Path("server.log"),
    }


def test_a_page_that_does_not_answer_is_borne_for_the_limit_and_no_longer(
    clock: Clock,
) -> None:
    watch = stall_watch(clock)
    watch.observe(Work(100, 4))
    feed(watch, clock, 65, None)
    with pytest.raises(StallError) as error:
        feed(watch, clock, 5, None)
    assert (error.value.code, error.value.facts["lasted_s"]) == ("no_metrics", 65)


def test_every_token_starts_the_limit_anew(clock: Clock) -> None:
    watch = stall_watch(clock)
    for tokens in range(100):
        watch.observe(Work(tokens, 4))
        feed(watch, clock, 55, Work(tokens, 4))


def test_an_idle_server_is_given_the_load_generators_start_and_then_the_limit(
    clock: Clock,
) -> None:
    """So is one whose engine was stopped before the first request: it reports none, and generates nothing."""
    watch = stall_watch(clock)
    feed(watch, clock, 150, Work(0, 0))
    feed(
        watch, clock, 25, Work(0, 4)
    )  # the first requests are prefilled: the limit begins with them
    with pytest.raises(StallError) as error:
        feed(watch, clock, 30, Work(0, 0))
    assert (error.value.code, error.value.facts["lasted_s"]) == (
        "no_token_nor_request",
        185,
    )
    assert (error.value.facts["limit_s"], error.value.facts["start_s"]) == (60, 120)


def test_under_a_closed_loop_an_idle_server_is_given_the_limit_alone(
    clock: Clock,
) -> None:
    """An engine that was stopped between two requests counts none of those that wait for it since."""
    watch = stall_watch(clock, loaded_s=600.0)
    feed(watch, clock, 150, Work(40, 0))
    feed(watch, clock, 60, Work(41, 2))
    with pytest.raises(StallError) as error:
        feed(watch, clock, 15, Work(41, 0))
    assert error.value.code == "no_token_nor_request"
    assert error.value.facts == {
        "lasted_s": 65,
        "limit_s": 60,
        "start_s": 0,
        "log": Path("server.log"),
    }


@pytest.mark.parametrize(
    ("work", "code", "requests"),
    [(Work(41, 2), "no_token", 2), (None, "no_metrics", None)],
)
def test_under_a_closed_loop_what_is_known_of_the_requests_is_said(
    clock: Clock, work: Work | None, code: str, requests: int | None
) -> None:
    watch = stall_watch(clock, loaded_s=600.0)
    watch.observe(Work(40, 2))
    watch.observe(Work(41, 2))
    feed(watch, clock, 65, work)
    with pytest.raises(StallError) as error:
        feed(watch, clock, 5, work)
    assert (error.value.code, error.value.facts["requests"]) == (code, requests)
    assert 60 < error.value.facts["lasted_s"] < 70


def test_after_a_closed_loop_the_generator_may_take_its_time_over_its_report(
    clock: Clock,
) -> None:
    watch = stall_watch(clock, loaded_s=600.0)
    watch.observe(Work(40, 0))
    for tokens in range(41, 53):
        feed(watch, clock, 50, Work(tokens, 2))
    feed(watch, clock, 130, Work(52, 0))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 8)), min_size=1, max_size=60)
)
def test_a_server_that_generates_within_every_limit_is_never_accused(
    steps: list[tuple[int, int]],
) -> None:
    clock = Clock()
    watch = stall_watch(clock)
    for tokens, (seconds, requests) in enumerate(steps):
        clock.seconds += seconds
        watch.observe(Work(tokens, requests))


def test_the_server_is_asked_with_a_time_limit(clock: Clock) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(5)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    watch = stall_watch(
        clock, f"http://127.0.0.1:{server.server_port}/metrics", limit_s=1.0
    )
    begin = time.monotonic()
    watch.check()
    assert time.monotonic() - begin < 2
    clock.seconds += 2
    with pytest.raises(StallError) as error:
        watch.check()
    assert error.value.code == "no_metrics"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("step", [-3600.0, -0.7, 0.7, 7200.0])
def test_a_step_of_the_wall_clock_is_found(step: float) -> None:
    wall, steady = Clock(), Clock()
    watch = ClockWatch(wall, steady)
    wall.seconds += 100 + step
    steady.seconds += 100
    with pytest.raises(ClockError) as error:
        watch.check()
    assert error.value.facts["step_s"] == pytest.approx(step)


def test_what_ntp_slews_is_no_step() -> None:
    wall, steady = Clock(), Clock()
    watch = ClockWatch(wall, steady)
    for _ in range(3600):
        steady.seconds += 1
        wall.seconds += 1 + 450e-6
        watch.check()


def test_a_full_disk_is_named_with_what_is_missing(tmp_path: Path) -> None:
    require_free(tmp_path, 1, "nothing much")
    with pytest.raises(DiskFullError) as error:
        require_free(tmp_path, 2**60, "a run")
    free = error.value.facts["free_bytes"]
    assert 0 < free < 2**60
    assert error.value.facts == {
        "path": tmp_path,
        "free_bytes": free,
        "needed_bytes": 2**60,
        "use": "a run",
    }


def test_a_check_that_fails_in_its_thread_is_raised_where_it_is_asked_for() -> None:
    calls = []

    def check() -> None:
        calls.append(time.monotonic())
        if len(calls) == 3:
            raise StallError("hangs")

    with monitored([(check, 0.01), (lambda: time.sleep(10), 0.01)]) as require:
        require()
        deadline = time.monotonic() + 5
        with pytest.raises(StallError, match="hangs"):
            while time.monotonic() < deadline:
                require()
                time.sleep(0.01)
    assert len(calls) == 3


def test_checks_end_with_the_body() -> None:
    calls: list[float] = []
    with monitored([(lambda: calls.append(time.monotonic()), 0.01)]):
        time.sleep(0.1)
    time.sleep(0.05)
    count = len(calls)
    assert count > 1
    time.sleep(0.1)
    assert len(calls) == count
