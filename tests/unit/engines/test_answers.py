"""Answers cold and from a cache: what counts as the same, a near tie or changed, and what shows nothing."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kveval.engines.servers import answers
from kveval.engines.servers.answers import (
    TOLERANCE_NATS,
    check,
    combine,
    compare,
    prompts,
)
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import DeploymentError
from kveval.host.http import HttpError
from kveval.stacks.running_server import Completion
from kveval.stacks.vllm import VLLM
from kveval.store.run_file import Answers

HITS = {
    True: "vllm:external_prefix_cache_hits_total",
    False: "vllm:prefix_cache_hits_total",
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STORING_S", (0.0, 0.0))
    monkeypatch.setattr(answers, "_COUNTED_S", 0.0)


@dataclass
class Server:
    """A server with a device cache and a tier; `wrong`: by place, another token that answers from a cache have there.

    Its tokens are numbers that begin with that of the prompt; `margin_nats`: by how much each is likelier than 99.
    """

    tier: bool = True
    margin_nats: float = 3.0
    wrong: Mapping[int, int] = field(default_factory=dict)
    wrong_source: str = "either"
    """What gives the wrong answers: the device's cache, the tier or either."""
    room: int = 99
    """How many prompts the device holds."""
    stores: int = 0
    """How many times the device's cache is emptied before the tier has anything."""
    blind: bool = False
    resets: int = 0
    hits: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(HITS.values(), 0.0)
    )
    device: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    told: int = 0

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> Any:
        self.asked.append(path)
        if path.startswith("/reset_prefix_cache"):
            self.resets += 1
            self.device.clear()
            if "reset_external" in path:
                self.seen.clear()
            return {"success": True}
        assert path == "/v1/completions"
        assert isinstance(body, dict)
        assert body["temperature"] == 0
        return self.complete(
            body["prompt"], body["max_tokens"], body.get("logprobs", 0)
        )

    def complete(self, prompt: str, tokens: int, likeliest: int) -> Any:
        length = len(prompt.split())
        stored = self.tier and self.resets > self.stores and prompt in self.seen
        source = "device" if prompt in self.device else "tier" if stored else None
        if source is not None:
            self.hits[HITS[source == "tier"]] += length
        cached = source is not None and self.wrong_source in (source, "either")
        if len(self.device) >= self.room:
            self.device.clear()
        self.device.add(prompt)
        self.seen.add(prompt)
        self.told += likeliest > 0
        first = 0 if self.blind else int(prompt[prompt.index(" is ") + 4 :][:5])
        right = [first + place for place in range(tokens)]
        top = [
            {f"token_id:{token}": -0.1, "token_id:99": -0.1 - self.margin_nats}
            for token in right
        ]
        answer = [
            self.wrong.get(place, token) if cached else token
            for place, token in enumerate(right)
        ]
        return {
            "choices": [
                {
                    "token_ids": answer,
                    "logprobs": {"top_logprobs": top} if likeliest else None,
                }
            ],
            "usage": {"prompt_tokens": length, "completion_tokens": tokens},
        }

    def questioned(self, version: str = "0.32.0") -> Endpoint:
        def fetch(
            path: str, method: str = "GET", body: object = None, timeout_s: float = 30.0
        ) -> bytes:
            if path == "/metrics":
                return "".join(
                    f"# TYPE {name} counter\n{name} {hits}\n"
                    for name, hits in self.hits.items()
                ).encode()
            return json.dumps(self.ask(path, method, body, timeout_s)).encode()

        return Endpoint(VLLM, "m", fetch, Path("a.log"), version)


@pytest.mark.parametrize("tier", [True, False])
def test_equal_answers_from_the_cache_are_the_same(tier: bool) -> None:
    server = Server(tier=tier)
    found = check(server.questioned(), tier=tier, longest=8192)
    assert (
        found.same,
        found.near_ties,
        found.changed,
        found.prompts,
        found.tokens,
    ) == (4, 0, 0, 4, 16)
    assert found.served_from == ("tier" if tier else "device")
    assert found.served_tokens == found.prompt_tokens
    assert (found.unchecked, found.first_difference, found.tolerance_nats) == (
        "",
        None,
        TOLERANCE_NATS,
    )
    # The tier keeps what it has, and nothing has the server compile what log-probabilities take.
    assert [path for path in server.asked if path != "/v1/completions"] == [
        "/reset_prefix_cache"
    ] * tier
    assert server.told == 0


@pytest.mark.parametrize(
    ("source", "of_device", "of_tier"),
    [("device", 4, 0), ("tier", 0, 4), ("either", 4, 4)],
)
def test_the_devices_cache_and_the_tier_are_compared_each(
    source: str, of_device: int, of_tier: int
) -> None:
    server = Server(wrong={5: 99}, wrong_source=source)
    found = check(server.questioned(), tier=True, longest=8192)
    assert found.device is not None
    assert (found.served_from, found.changed, found.wrong) == (
        "tier",
        of_tier,
        of_tier > 0,
    )
    assert (found.device.served_from, found.device.changed, found.device.wrong) == (
        "device",
        of_device,
        of_device > 0,
    )
    assert found.by_source == {"tier": found, "device": found.device}
    # Each prompt whose answers differ is answered once more, with log-probabilities, for both comparisons.
    assert server.told == 4


def test_a_device_that_holds_one_prompt_is_compared() -> None:
    found = check(Server(tier=False, room=1).questioned(), tier=False, longest=8192)
    assert (found.same, found.served_from, found.unchecked) == (4, "device", "")
    assert found.by_source == {"device": found}


@pytest.mark.parametrize("tier", [True, False])
def test_another_token_where_the_cold_one_was_far_likelier_is_a_changed_answer(
    tier: bool,
) -> None:
    server = Server(tier=tier, wrong={5: 99, 9: 7})
    found = check(server.questioned(), tier=tier, longest=8192)
    assert (found.same, found.near_ties, found.changed, found.unchecked) == (
        0,
        0,
        4,
        "",
    )
    first = found.first_difference
    assert first is not None
    assert (first.prompt, first.token, first.again, first.near_tie) == (
        0,
        5,
        "99",
        False,
    )
    assert first.margin_nats == pytest.approx(3.0)
    assert server.told == 4


def test_a_token_that_is_not_among_the_likeliest_is_a_changed_answer() -> None:
    found = check(
        Server(margin_nats=0.1, wrong={0: 7}).questioned(), tier=True, longest=8192
    )
    assert found.changed == 4
    assert found.first_difference is not None
    assert found.first_difference.margin_nats is None


def completion(*margins: float, tokens: Sequence[str] = ()) -> Completion:
    top = [
        {f"a{place}": -0.5, f"b{place}": -0.5 - margin}
        for place, margin in enumerate(margins)
    ]
    return Completion(
        100, tuple(tokens or (f"a{place}" for place in range(len(margins)))), top
    )


SAME = Completion(100, ("z",))


@pytest.mark.parametrize(
    ("margin", "near", "changed"),
    [(0.0, 1, 0), (0.24, 1, 0), (-0.24, 1, 0), (0.26, 0, 1), (-0.26, 0, 1)],
    ids=[
        "tie",
        "near",
        "near, the other way round",
        "apart",
        "apart, the other way round",
    ],
)
def test_a_near_tie_is_told_from_a_change_by_the_margin_where_answers_part(
    margin: float, near: int, changed: int
) -> None:
    # What follows the first difference answers another text.
    parted, judged = (
        completion(0, 0, 0, tokens=["a0", "b1", "b2"]),
        completion(4.0, margin, 4.0),
    )
    found = compare(
        [completion(0, 0, 0), SAME], [parted, SAME], {0: judged}, 200, tier=True
    )
    assert (found.same, found.near_ties, found.changed) == (1, near, changed)


def test_a_third_answer_that_parts_before_says_nothing_of_the_place() -> None:
    judged = completion(4.0, 0.0, tokens=["b0", "a1"])
    parted = completion(0, 0, tokens=["a0", "b1"])
    assert (
        compare(
            [completion(0, 0), SAME], [parted, SAME], {0: judged}, 200, tier=True
        ).changed
        == 1
    )


def test_a_shorter_answer_is_another_one() -> None:
    found = check(Shorter().questioned(), tier=False, longest=8192)
    assert found.changed == 4


class Shorter(Server):
    """A server whose answers from a cache lack their last token."""

    def complete(self, prompt: str, tokens: int, likeliest: int) -> Any:
        cached = prompt in self.device
        self.tier = False
        found = super().complete(prompt, tokens, likeliest)
        if cached:
            found["choices"][0]["token_ids"].pop()
        return found


def test_of_a_near_tie_and_a_change_the_change_is_told() -> None:
    cold, again = [completion(0)] * 2, [completion(0, tokens=["b0"])] * 2
    found = compare(
        cold, again, {0: completion(0.1), 1: completion(4.0)}, 200, tier=True
    )
    assert (found.near_ties, found.changed) == (1, 1)
    assert found.first_difference is not None
    assert found.first_difference.prompt == 1


def test_a_tier_that_is_slow_to_store_is_asked_again() -> None:
    server = Server(stores=1)
    found = check(server.questioned(), tier=True, longest=8192)
    assert (server.resets, found.served_from, found.unchecked) == (2, "tier", "")


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (Server(stores=9), "the tier served 0 of the prompts'"),
        (Server(margin_nats=0.2, wrong={3: 99}), "every answer differs at a near tie"),
        (Server(blind=True), "the answers do not depend on what is cached"),
    ],
    ids=["not stored", "near ties alone", "nothing read"],
)
def test_what_shows_nothing_is_not_checked(server: Server, reason: str) -> None:
    found = check(server.questioned(), tier=True, longest=8192)
    assert found.unchecked.startswith(reason)
    assert found.prompts == 4


def raising(error: Exception) -> Any:
    def ask(*_: Any, **__: Any) -> Any:
        raise error

    return ask


@pytest.mark.parametrize(
    "ask",
    [
        raising(HttpError("no answer")),
        raising(DeploymentError("refused")),
        lambda *_, **__: {"usage": {"completion_tokens": 4}},
        lambda *_, **__: None,
    ],
    ids=["no answer", "refused", "no tokens", "no JSON"],
)
def test_a_server_that_does_not_say_enough_ends_no_run(ask: Any) -> None:
    def fetch(
        path: str, method: str = "GET", body: object = None, timeout_s: float = 30.0
    ) -> bytes:
        return (
            b""
            if path == "/metrics"
            else json.dumps(ask(path, method=method, body=body)).encode()
        )

    found = check(
        Endpoint(VLLM, "m", fetch, Path("a.log"), "0.32.0"),
        tier=True,
        longest=8192,
    )
    assert found.unchecked
    assert found.prompts == 0


def test_a_release_without_the_counter_is_not_checked() -> None:
    found = check(Server().questioned("0.11.0"), tier=True, longest=8192)
    assert "0.11.0 does not count" in found.unchecked


@pytest.mark.parametrize("longest", [256, 1024, 8192, 131072])
def test_prompts_fit_ask_the_same_and_differ_from_their_beginning(longest: int) -> None:
    texts = prompts(longest, 0)
    assert len(set(texts)) == 4
    assert len({text[-40:] for text in texts}) == 1
    assert len({text[:40] for text in texts}) == 4
    # A token of a byte-level tokenizer is seldom shorter than two characters.
    assert all(len(text) / 2 <= longest for text in texts)
    # What is asked is among what is told.
    assert all(
        text.count("the number of the blue door")
        + text.count("The number of the blue door")
        == 2
        for text in texts
    )
    assert texts == prompts(longest, 0)
    assert not set(texts) & set(prompts(longest, 1))


def test_replicas_are_one_and_what_one_did_not_show_was_not_shown() -> None:
    good, bad = (
        check(Server(wrong=wrong).questioned(), tier=True, longest=8192)
        for wrong in ({}, {3: 99})
    )
    found = combine([good, bad])
    assert (found.prompts, found.same, found.changed, found.served_from) == (
        8,
        4,
        4,
        "tier",
    )
    assert found.first_difference == bad.first_difference
    lacking = combine([good, Answers(unchecked="why")])
    assert (lacking.unchecked, lacking.served_from) == ("why", "none")
    assert combine([good]) == good
    assert found.device is not None
    assert (found.device.prompts, found.device.changed, found.device.served_from) == (
        8,
        4,
        "device",
    )
    for one, other in itertools.permutations([good, bad]):
        assert combine([one, other]).changed == 4
