"""Whether a server answers alike cold and from its caches: the same greedy prompts twice, compared token by token.

A tier that returns other keys and values than it was given answers fluently and wrongly (LMCache#4247, #4463), which no
measure of speed shows. A prompt is a list of numbers and asks for one of the first, which only a right cache can tell.
"""

import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kveval.engines.counters import CounterError
from kveval.engines.protocol import DeploymentError
from kveval.engines.servers import declared
from kveval.engines.servers.protocol import Ask, Completion, ServerProgram
from kveval.host.http import HttpError
from kveval.store.run_file import AnswerDifference, Answers

PROMPTS = 4
TOKENS = 16
# A prefix from a cache is computed in another order than a cold one. That moved log-probabilities by 0.06 nats in
# vLLM#5543 and by one step of bfloat16 between logits of 16 and 32, 0.125, in vLLM#52701: a tie may be two such steps
# wide. A cache that was handed over wrongly moved them by more than 3 (vLLM#52617).
TOLERANCE_NATS = 0.25
"""How much likelier the cold answer's token may be for another one in its place to count as a near tie."""
_SERVED_SHARE = 0.5
"""Of the prompts' tokens, that a cache must have served for its answers to be its own."""
_COLOURS = ("red", "blue", "green", "white", "black", "brown", "yellow", "grey")
_THINGS = ("door", "house", "river", "table", "horse", "garden", "letter")
_ASKED = " Once more, the number of the blue door is"
# More than any tokenizer makes of a line, and of what is asked with its answer.
_LINE_TOKENS = 20
_REST_TOKENS = 64
# Tiers store while nothing waits for them; files and servers beside take longer than memory.
_STORING_S = (0.5, 2.0)
_COUNTED_S = 1.0
_TIMEOUT_S = 120.0


def prompts(longest: int, seed: int) -> list[str]:
    """Return texts of equal ends, some 800 tokens each as far as `longest`, tokens of a conversation, has room."""
    room = max(4, (longest - _REST_TOKENS) // _LINE_TOKENS)
    names = [f"{colour} {thing}" for thing, colour in itertools.product(_THINGS, _COLOURS)][:room]
    chosen = random.Random(seed)
    texts = []
    for _ in range(PROMPTS):
        lines = [f" The number of the {name} is {chosen.randrange(10_000, 100_000)}." for name in names]
        texts.append("".join(lines).lstrip() + _ASKED)
    return texts


@dataclass(frozen=True)
class Questioned:
    """One idle server that is to answer; `counters` reads its own."""

    program: ServerProgram
    ask: Ask
    served_model: str
    version: str
    counters: Callable[[], Mapping[str, float]]
    log: object

    def answers(self, texts: Sequence[str]) -> list[Completion]:
        """Answer one after the other, alone: what else is in a batch changes the order of additions."""
        found = [self.program.completed(self.ask, self.served_model, text, TOKENS, _TIMEOUT_S) for text in texts]
        told = [completion for completion in found if completion is not None]
        if len(told) < len(texts):
            raise DeploymentError("the server does not tell the log-probabilities of its tokens", code="no_tokens")
        return told

    def again(self, texts: Sequence[str], *, tier: bool, wait_s: float, wanted: float) -> tuple[list[Completion], int]:
        """Answer once more, from the tier or the device's cache; return also how many tokens that has served."""
        metric = "external_prefix_cache_hits" if tier else "prefix_cache_hits"
        name = self.program.software.on_wire(metric, self.version)
        if name is None:
            said = f"{self.program.software.title} {self.version} does not count what its caches serve"
            raise DeploymentError(said, code="no_counter")
        time.sleep(wait_s)
        if tier:
            declared.reset_caches(self.program, self.ask, self.log, tiers=False)
        before = self.counters().get(name, 0.0)
        found = self.answers(texts)
        deadline = time.monotonic() + _COUNTED_S
        # A page of metrics may be a moment behind the answers.
        while (served := self.counters().get(name, 0.0) - before) < wanted and time.monotonic() < deadline:
            time.sleep(0.1)
        return found, int(served)


def check(server: Questioned, *, tier: bool, longest: int, seed: int = 0) -> Answers:
    """Have a server answer prompts cold and again from its cache, and compare.

    `tier`: whether the tier behind the device is to serve them, for which the device's own cache is emptied; `longest`:
    tokens of a conversation; servers of different `seed` get different prompts. What cannot be checked says why in
    `unchecked`.
    """
    texts = prompts(longest, seed)
    try:
        cold = server.answers(texts)
        wanted = _SERVED_SHARE * sum(completion.prompt_tokens for completion in cold)
        for wait_s in _STORING_S if tier else (0.0,):
            again, served = server.again(texts, tier=tier, wait_s=wait_s, wanted=wanted)
            if served >= wanted:
                break
    except (HttpError, CounterError, DeploymentError) as error:
        # A server that is gone is found by those who watch for that.
        return Answers(unchecked=str(error))
    return compared(cold, again, served, tier=tier)


def compared(cold: Sequence[Completion], again: Sequence[Completion], served: int, *, tier: bool) -> Answers:
    """Compare answers to the same prompts; `served`: tokens of the prompts that the cache had."""
    differences = [
        found
        for number, (first, second) in enumerate(zip(cold, again, strict=True))
        if (found := _difference(number, first, second)) is not None
    ]
    changed = [found for found in differences if not found.near_tie]
    asked = sum(completion.prompt_tokens for completion in cold)
    source = "tier" if tier else "device"
    return Answers(
        prompts=len(cold),
        tokens=TOKENS,
        same=len(cold) - len(differences),
        near_ties=len(differences) - len(changed),
        changed=len(changed),
        served_from=source if served >= _SERVED_SHARE * asked else "none",
        prompt_tokens=asked,
        served_tokens=served,
        tolerance_nats=TOLERANCE_NATS,
        first_difference=next(iter([*changed, *differences]), None),
        unchecked=_unchecked(cold, served, asked, source),
    )


def together(found: Sequence[Answers]) -> Answers:
    """Return the answers of several servers as one; what was not checked in one of them was not checked."""
    sums = {
        name: sum(getattr(each, name) for each in found)
        for name in ("prompts", "same", "near_ties", "changed", "prompt_tokens", "served_tokens")
    }
    told = sorted(found, key=lambda each: each.changed, reverse=True)
    return Answers(
        **sums,
        tokens=found[0].tokens,
        served_from=found[0].served_from if len({each.served_from for each in found}) == 1 else "none",
        tolerance_nats=TOLERANCE_NATS,
        first_difference=next((each.first_difference for each in told if each.first_difference), None),
        unchecked=next((each.unchecked for each in found if each.unchecked), ""),
    )


def _difference(number: int, cold: Completion, again: Completion) -> AnswerDifference | None:
    """Return where the answers to one prompt part; after that they answer different texts."""
    for place, (first, second) in enumerate(itertools.zip_longest(cold.tokens, again.tokens)):
        if first == second:
            continue
        # Of a token that is not among the likeliest no more is known than that it is less likely than these.
        likeliest = cold.likeliest[place] if place < len(cold.likeliest) else {}
        known = first in likeliest and second in likeliest
        margin = likeliest[first] - likeliest[second] if known else None
        near = margin is not None and margin <= TOLERANCE_NATS
        return AnswerDifference(number, place, first or "", second or "", margin, near)
    return None


def _unchecked(cold: Sequence[Completion], served: int, asked: int, source: str) -> str:
    """Say why equal answers would show nothing; "" where they do."""
    if served < _SERVED_SHARE * asked:
        return f"the {source} served {served:,} of the prompts' {asked:,} tokens"
    if not any(_decided(completion) for completion in cold):
        return "every token of the answers is a near tie, as with random weights"
    if len({tuple(completion.tokens) for completion in cold}) == 1:
        return "the answers do not depend on what is cached, as with random weights"
    return ""


def _decided(completion: Completion) -> bool:
    """Tell whether any token was likelier than the next by more than the tolerance."""
    ranked = [sorted(likeliest.values(), reverse=True) for likeliest in completion.likeliest]
    return any(len(values) > 1 and values[0] - values[1] > TOLERANCE_NATS for values in ranked)
