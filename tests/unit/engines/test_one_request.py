"""The three times of one request: what is timed, what counts as coming from a cache, and what lacks a number."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.config_files import BASE, CONFIG, RAW

from kveval.configuration.loading import load_config
from kveval.engines.servers import answers, one_request
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.one_request import PROMPTS, measure, request_tokens
from kveval.host.http import HttpError
from kveval.stacks.vllm import VLLM
from kveval.store.run_file import RequestTime

LINE_TOKENS = 14
DEVICE, TIER = "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total"
SECONDS = {"cold": 1.0, "device": 0.01, "tier": 0.2}


@dataclass
class Clock:
    """Time that passes only where somebody waits."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    passing = Clock()
    for module in (answers, one_request):
        monkeypatch.setattr(module, "time", passing)
    return passing


@dataclass
class Server:
    """A server with caches that hold so many prompts, each a token in `LINE_TOKENS` of a line."""

    clock: Clock
    device_room: int = 9
    tier_room: int = 9
    tier_share: float = 1.0
    """Share of a prompt that the tier has."""
    stored_s: float = 0.0
    """Seconds until the tier has stored a prompt."""
    foreign_hits: int = 0
    """Tokens that others find on the device during each request."""
    device: list[str] = field(default_factory=list)
    tier: dict[str, float] = field(default_factory=dict)
    hits: dict[str, float] = field(default_factory=lambda: {DEVICE: 0.0, TIER: 0.0})
    prompts: list[tuple[str, int]] = field(default_factory=list)
    fails_at: str = ""

    def fetch(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> bytes:
        if self.fails_at and path.startswith(self.fails_at):
            raise HttpError(f"{method} {path} failed")
        if path == "/metrics":
            lines = [
                f"# TYPE {name} counter\n{name} {hits}\n"
                for name, hits in self.hits.items()
            ]
            return "".join(lines).encode()
        if path.startswith("/reset_prefix_cache"):
            assert "reset_external" not in path
            self.device.clear()
            return b'{"success": true}'
        assert isinstance(body, dict)
        return json.dumps(self.complete(body["prompt"], body["max_tokens"])).encode()

    def complete(self, prompt: str, tokens: int) -> dict[str, Any]:
        length = LINE_TOKENS * prompt.count(" is ")
        source, served = self.source_of(prompt, length)
        self.prompts.append((source, length))
        self.clock.now += SECONDS[source]
        if source != "cold":
            self.hits[TIER if source == "tier" else DEVICE] += served
        self.hits[DEVICE] += self.foreign_hits
        self.device = [*self.device, prompt][-self.device_room :]
        if source == "cold":
            self.tier[prompt] = self.clock.now + self.stored_s
            self.tier = dict([*self.tier.items()][-self.tier_room :])
        return {
            "choices": [{"token_ids": [1] * tokens}],
            "usage": {"prompt_tokens": length},
        }

    def source_of(self, prompt: str, length: int) -> tuple[str, int]:
        if prompt in self.device:
            return "device", length
        if self.tier.get(prompt, 1e9) <= self.clock.now and self.tier_share:
            return "tier", int(self.tier_share * length)
        return "cold", 0

    def endpoint(self, version: str = "0.32.0", through: str = "") -> Endpoint:
        log = Path("a.log")
        return Endpoint(VLLM, "m", self.fetch, log, version, through=through)


def test_each_source_has_the_time_of_its_requests(clock: Clock) -> None:
    server = Server(clock)
    times = measure(server.endpoint(), tier=True, prompt_tokens=1400)
    assert times.tier is not None
    assert times.by_source.keys() == SECONDS.keys()
    for source, of_source in times.by_source.items():
        ms, served = 1000 * SECONDS[source], 0 if source == "cold" else 1400
        assert of_source.requests == [RequestTime(ms, 1400, served)] * PROMPTS
        assert not of_source.reason
    assert times.through == ""
    # One token each, and a short prompt first, which tells how many tokens a line has.
    assert server.prompts[0] == ("cold", 8 * LINE_TOKENS)


def test_without_a_tier_there_are_two_times(clock: Clock) -> None:
    times = measure(
        Server(clock).endpoint(through="the API server"),
        tier=False,
        prompt_tokens=1400,
    )
    assert times.by_source.keys() == {"cold", "device"}
    assert times.tier is None
    assert times.through == "the API server"


def test_prompts_are_new_at_each_call(clock: Clock) -> None:
    server = Server(clock)
    for _ in range(2):
        times = measure(server.endpoint(), tier=True, prompt_tokens=1400)
        assert len(times.cold.requests) == PROMPTS


@pytest.mark.parametrize(
    ("change", "count", "reason"),
    [
        ({"stored_s": 1.0}, PROMPTS, ""),
        ({"stored_s": 60.0}, 0, "the tier served 0 of the prompts' 1,400 tokens"),
        ({"tier_share": 0.5}, 0, "the tier served 700 of the prompts' 1,400 tokens"),
        ({"tier_share": 0.85}, PROMPTS, ""),
        # The newest prompt, which a small tier still has.
        ({"tier_room": 1}, 1, ""),
    ],
    ids=["slow to store", "never stored", "in part", "all but a chunk", "small"],
)
def test_a_time_of_the_tier_needs_the_tier_to_have_served(
    clock: Clock, change: dict[str, Any], count: int, reason: str
) -> None:
    times = measure(Server(clock, **change).endpoint(), tier=True, prompt_tokens=1400)
    assert times.tier is not None
    assert len(times.tier.requests) == count
    assert {request.ttft_ms for request in times.tier.requests} <= {200.0}
    assert times.tier.reason == reason
    assert len(times.cold.requests) == len(times.device.requests) == PROMPTS


def test_tokens_that_others_found_let_no_time_count(clock: Clock) -> None:
    times = measure(
        Server(clock, foreign_hits=50).endpoint(), tier=False, prompt_tokens=1400
    )
    assert times.cold.requests == times.device.requests == []
    assert times.cold.reason == "caches served 150 of the prompts' 4,200 tokens"
    assert "4,350 of the prompts' 4,200 tokens" in times.device.reason


def test_a_device_that_serves_nothing_has_no_time(clock: Clock) -> None:
    class Forgetful(Server):
        def source_of(self, prompt: str, length: int) -> tuple[str, int]:
            return "cold", 0

    times = measure(Forgetful(clock).endpoint(), tier=False, prompt_tokens=1400)
    assert len(times.cold.requests) == PROMPTS
    assert times.device.reason == "the device served 0 of the prompts' 4,200 tokens"


@pytest.mark.parametrize("path", ["/v1/completions", "/metrics"])
def test_a_server_that_does_not_answer_ends_no_run(clock: Clock, path: str) -> None:
    times = measure(
        Server(clock, fails_at=path).endpoint(), tier=True, prompt_tokens=1400
    )
    for of_source in times.by_source.values():
        assert of_source.requests == []
        assert f"{path} failed" in of_source.reason


def test_a_device_that_cannot_be_emptied_leaves_the_other_times(clock: Clock) -> None:
    times = measure(
        Server(clock, fails_at="/reset").endpoint(), tier=True, prompt_tokens=1400
    )
    assert times.tier is not None
    assert "failed" in times.tier.reason
    assert len(times.cold.requests) == len(times.device.requests) == PROMPTS


def test_a_release_without_the_counter_has_no_times(clock: Clock) -> None:
    times = measure(Server(clock).endpoint("0.11.0"), tier=True, prompt_tokens=1400)
    assert times.tier is not None
    assert "0.11.0 does not count" in times.tier.reason


SPECIFICATION = load_config(RAW["config"], CONFIG).specification(BASE)


@pytest.mark.parametrize(
    ("workload", "settings", "tokens"),
    [
        ({"prefix_tokens": 1000, "prompt_tokens": 64}, {}, 1064),
        ({"prefix_tokens": 4000, "prompt_tokens": 64}, {}, 2000),
        ({"prefix_tokens": 30_000}, {"longest": 40_960, "build": "cuda"}, 10_000),
        ({"prefix_tokens": 30_000}, {"longest": 8192, "build": "cuda"}, 7372),
        ({"prefix_tokens": 0, "prompt_tokens": 8}, {}, 800),
        ({"prefix_tokens": 0, "prompt_tokens": 8}, {"longest": 576}, 518),
        ({"prefix_tokens": 4000}, {"weights": "full"}, 800),
        ({"prefix_tokens": 4000}, {"weights": "full", "build": "cuda"}, 4064),
        ({"prefix_tokens": 4000}, {"reset_caches": "restart"}, 800),
        ({"profile": "prefix-length", "levels": (500, 1000)}, {}, 1064),
    ],
)
def test_prompts_are_as_long_as_the_loads_where_that_takes_no_time(
    workload: dict[str, Any], settings: dict[str, Any], tokens: int
) -> None:
    assert request_tokens(changed(workload, settings)) == tokens


@given(prefix=st.integers(0, 200_000), longest=st.integers(64, 200_000))
def test_prompts_fit_the_longest_conversation(prefix: int, longest: int) -> None:
    tokens = request_tokens(changed({"prefix_tokens": prefix}, {"longest": longest}))
    assert tokens < longest
    assert tokens <= 10_000


def changed(workload: dict[str, Any], settings: dict[str, Any]) -> Any:
    """The specification of the baseline with another load and other settings."""
    base = SPECIFICATION.with_workload(
        **{"prefix_tokens": 0, "document_tokens": 0, "prompt_tokens": 64} | workload
    )
    values = dict(settings)
    longest = values.pop("longest", 8192)
    model = base.model.model_copy(update={"max_model_len": longest})
    return msgspec.structs.replace(base, model=model, **values)
