"""Answers cold and from a cache: what counts as the same, a near tie or changed, and what shows nothing."""

import itertools
import json
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kveval.engines.servers import answers
from kveval.engines.servers.answers import (
    PROMPTS,
    QUESTIONS,
    TOLERANCE_NATS,
    Judges,
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
EVERY = PROMPTS * QUESTIONS


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STORING_S", (0.0, 0.0))
    monkeypatch.setattr(answers, "_COUNTED_S", 0.0)


@dataclass
class Server:
    """A server with a device cache and a tier; `wrong`: by place, another token that answers from a cache have there.

    It keeps lists without their questions, and answers with numbers that begin with that of the line asked for;
    `margin_nats`: by how much each is likelier than 99.
    """

    tier: bool = True
    margin_nats: float = 3.0
    wrong: Mapping[int, int] = field(default_factory=dict)
    wrong_source: str = "either"
    """What gives the wrong answers: the device's cache, the tier or either."""
    lost_share: float = 0.0
    """Share of the blocks of 16 words that the tier does not give back."""
    seed: int = 0
    room: int = 99
    """How many lists the device holds."""
    stores: int = 0
    """How many times the device's cache is emptied before the tier has anything."""
    blind: bool = False
    fails_from_tier: bool = False
    resets: int = 0
    hits: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(HITS.values(), 0.0)
    )
    device: dict[str, str] = field(default_factory=dict)
    """The lists that the device holds, by where they come from: computed there, or loaded from the tier."""
    seen: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    told: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: object = None,
        timeout_s: float = 30.0,
    ) -> Any:
        with self.lock:
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
        text, _, question = prompt.rpartition(" Once more, the number of the ")
        name = question.removesuffix(" is")
        length = len(text.split())
        stored = self.tier and self.resets > self.stores and text in self.seen
        source = "device" if text in self.device else "tier" if stored else None
        if source is not None:
            self.hits[HITS[source == "tier"]] += length
        if source == "tier" and self.fails_from_tier:
            raise HttpError("the connection was closed")
        if len(self.device) >= self.room and text not in self.device:
            self.device.clear()
        copy = self.device.setdefault(text, "tier" if source == "tier" else "device")
        cached = source is not None and self.wrong_source in (copy, "either")
        self.seen.add(text)
        self.told += likeliest > 0
        before, _, after = text.partition(f"he number of the {name} is ")
        first = 0 if self.blind else int(after[:5])
        if copy == "tier":
            # The first and the last word of the line.
            place = len(before.split()) - 1
            blocks = {place // 16, (place + 7) // 16}
            first += any(
                random.Random(f"{self.seed} {text} {block}").random() < self.lost_share
                for block in blocks
            )
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
    ) == ((EVERY, 0, 0, EVERY, 16) if tier else (4, 0, 0, 4, 16))
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
    # What else is asked of a list is compared with answers from the device's cache.
    [("device", 4, 0), ("tier", 0, EVERY), ("either", 4, 4)],
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
    assert server.told == (4 if source == "either" else EVERY)


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
    assert (found.prompts - found.same, found.near_ties, found.changed) == (4, 0, 4)
    assert found.unchecked == ""
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
    [(0.0, 1, 0), (0.49, 1, 0), (-0.49, 1, 0), (0.51, 0, 1), (-0.51, 0, 1)],
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
        [completion(0, 0, 0), SAME],
        [parted, SAME],
        Judges({0: judged}),
        200,
        200,
        tier=True,
    )
    assert (found.same, found.near_ties, found.changed) == (1, near, changed)


@pytest.mark.parametrize("computed", [True, False])
@pytest.mark.parametrize(
    "judge",
    [
        completion(4.0, 4.0, tokens=["b0", "a1"]),
        completion(4.0, 4.0, tokens=["a0", "b1"]),
    ],
    ids=["parts before", "has the cache's token"],
)
def test_a_difference_that_computing_shows_as_well_is_a_near_tie(
    judge: Completion, computed: bool
) -> None:
    # An answer that a cache served may be as wrong as the one that it judges.
    parted = completion(0, 0, tokens=["a0", "b1"])
    found = compare(
        [completion(0, 0), SAME],
        [parted, SAME],
        Judges({0: judge}, computed=computed),
        200,
        200,
        tier=True,
    )
    assert (found.near_ties, found.changed) == ((1, 0) if computed else (0, 1))


def test_a_tier_that_loses_one_block_in_twenty_five_is_found() -> None:
    wrong = [
        check(
            Server(lost_share=1 / 25, seed=seed).questioned(), tier=True, longest=8192
        ).wrong
        for seed in range(40)
    ]
    assert sum(wrong) >= 36


def test_an_error_of_the_tier_keeps_what_the_device_showed() -> None:
    found = check(Server(fails_from_tier=True).questioned(), tier=True, longest=8192)
    assert found.unchecked == "the connection was closed"
    assert found.device is not None
    assert (found.device.same, found.device.unchecked) == (4, "")


def test_a_shorter_answer_is_another_one() -> None:
    found = check(Shorter().questioned(), tier=False, longest=8192)
    assert found.changed == 4


class Shorter(Server):
    """A server whose answers from a cache lack their last token."""

    def complete(self, prompt: str, tokens: int, likeliest: int) -> Any:
        cached = prompt.partition(" Once more")[0] in self.device
        self.tier = False
        found = super().complete(prompt, tokens, likeliest)
        if cached:
            found["choices"][0]["token_ids"].pop()
        return found


def test_of_a_near_tie_and_a_change_the_change_is_told() -> None:
    cold, again = [completion(0)] * 2, [completion(0, tokens=["b0"])] * 2
    judges = Judges({0: completion(0.1), 1: completion(4.0)})
    found = compare(cold, again, judges, 200, 200, tier=True)
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
        (
            Server(margin_nats=0.2, wrong={3: 99}, wrong_source="tier"),
            "56 of 56 answers differ, all at near ties",
        ),
        (Server(blind=True), "the answers do not depend on what is cached"),
    ],
    ids=["not stored", "near ties alone", "nothing read"],
)
def test_what_shows_nothing_is_not_checked(server: Server, reason: str) -> None:
    found = check(server.questioned(), tier=True, longest=8192)
    assert found.unchecked.startswith(reason)
    assert found.prompts in (4, EVERY)


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
def test_prompts_fit_and_ask_for_lines_from_the_first_to_the_last(longest: int) -> None:
    lists = prompts(longest, 0)
    assert len(lists) == PROMPTS
    assert len({questions[0][:40] for questions in lists}) == PROMPTS
    places = set()
    for questions in lists:
        texts = {question.partition(" Once more")[0] for question in questions}
        assert len(texts) == 1
        lines = texts.pop().removesuffix(".").split(". ")
        names = [
            question.rpartition(" the number of the ")[2] for question in questions
        ]
        asked = [
            next(place for place, line in enumerate(lines) if name in line)
            for name in names
        ]
        assert len(set(asked)) == len(asked) == min(QUESTIONS, len(lines))
        places |= set(asked)
        # A token of a byte-level tokenizer is seldom shorter than two characters.
        assert all(len(question) / 2 <= longest for question in questions)
    assert places == set(range(len(lines)))
    assert lists == prompts(longest, 0)
    assert not {text[:40] for text, *_ in lists} & {
        text[:40] for text, *_ in prompts(longest, 1)
    }


def test_replicas_are_one_and_what_one_did_not_show_was_not_shown() -> None:
    good, bad = (
        check(Server(wrong=wrong).questioned(), tier=True, longest=8192)
        for wrong in ({}, {3: 99})
    )
    found = combine([good, bad])
    assert (found.prompts, found.changed, found.served_from) == (2 * EVERY, 4, "tier")
    assert found.same == 2 * EVERY - 4
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
