"""Whether a server gives the same answers with and without its caches: greedy prompts sent again, compared by token.

With a tier that returns wrong keys and values, a server answers fluently but wrongly (LMCache#4247, #4463), which no
performance metric shows. A prompt lists numbers and asks for one of them, which needs a correct cache of that line. Of
each list several lines are asked for, from the first to the last, because a single block may be wrong.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import msgspec

from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import DeploymentError
from kveval.host.http import HttpError
from kveval.stacks.counters import CounterError
from kveval.stacks.running_server import Completion
from kveval.store.run_file import AnswerDifference, Answers

PROMPTS = 4
QUESTIONS = 14
"""How many lines of each prompt are asked for where a tier is checked: then no line of a long prompt is left out."""
_AT_ONCE = 8
TOKENS = 16
# With a cached prefix, additions are made in another order than with a cold one. That moved log-probabilities by 0.06
# nats in vLLM#5543 and by 0.125, one step of bfloat16 between logits of 16 and 32, in vLLM#52701. Between 32 and 64 a
# step is 0.25, and a tie may be two steps wide. A cache that was transferred wrongly moved them by more than 3
# (vLLM#52617).
TOLERANCE_NATS = 0.5
"""Largest difference of two tokens' log-probabilities, nats, at which one instead of the other is a near tie."""
RANDOM_WEIGHTS_TOLERANCE_NATS = 0.25
"""The same with random weights, whose logits are below 16: four steps of bfloat16 there.

Their likeliest tokens are so close to each other that few answers differ by more than 0.5 where one block is wrong.
"""
_MOST_NEAR_TIES = 0.7
"""Share of the answers that may differ at near ties: one block in 25 mixed up changed 49 of 56 so."""
_SERVED_SHARE = 0.5
"""Share of the prompts' tokens that a cache must have served for the comparison to be about the cache."""
_COLOURS = ("red", "blue", "green", "white", "black", "brown", "yellow", "grey")
_THINGS = ("door", "house", "river", "table", "horse", "garden", "letter")
# More tokens than any tokenizer makes of a line, and of the question with its answer.
_LINE_TOKENS = 20
_REST_TOKENS = 64
STORING_S = (0.5, 2.0)
"""Seconds to wait until a tier has stored blocks in the background; files and separate servers take longer."""
_COUNTED_S = 1.0
_LIKELIEST = 5
_SUMMED = (
    "prompts",
    "same",
    "near_ties",
    "changed",
    "prompt_tokens",
    "served_tokens",
)
_Failures = (HttpError, CounterError, DeploymentError)


@dataclass(frozen=True)
class Served:
    """Answers that a cache is to have served, and how many of the prompts' tokens it did."""

    answers: Sequence[Completion]
    tokens: int


@dataclass(frozen=True)
class Judges:
    """Further answers to the prompts whose answers differ, by the prompt's number, with the likeliest tokens.

    `computed`: whether no cache served them; `tolerance_nats`: up to which difference of log-probabilities two tokens
    are a near tie.
    """

    answers: Mapping[int, Completion] = field(default_factory=dict)
    computed: bool = False
    tolerance_nats: float = TOLERANCE_NATS


def prompts(longest: int, seed: int) -> list[list[str]]:
    """Return lists of some 800 tokens each, every one with several questions about its lines.

    The lists are shorter if `longest`, tokens of a conversation, is less. The lines asked for are spread over the whole
    list, its last line is among them, and the first questions of the lists ask for different ones.
    """
    room = max(4, (longest - _REST_TOKENS) // _LINE_TOKENS)
    names = [
        f"{colour} {thing}" for thing, colour in itertools.product(_THINGS, _COLOURS)
    ][:room]
    chosen = random.Random(seed)
    asked = []
    for number in range(PROMPTS):
        lines = [
            f" The number of the {name} is {chosen.randrange(10_000, 100_000)}."
            for name in names
        ]
        text = "".join(lines).lstrip()
        step = len(names) / QUESTIONS
        places = [
            max(0, round((question + (number + 1) / PROMPTS) * step) - 1)
            for question in range(QUESTIONS)
        ]
        turn = number * (QUESTIONS - 1) // (PROMPTS - 1)
        asked.append(
            [
                f"{text} Once more, the number of the {names[place]} is"
                for place in dict.fromkeys(places[turn:] + places[:turn])
            ]
        )
    return asked


def _answers(
    server: Endpoint, texts: Sequence[str], *, likeliest: int = 0, at_once: int = 1
) -> list[Completion]:
    """Return the answers; one request at a time changes the order of additions the least."""

    def answer(text: str) -> Completion:
        completion = server.program.completed(
            server.ask, server.served_model, text, TOKENS, likeliest
        )
        if completion is None:
            message = "the server does not return the tokens of its answers"
            raise DeploymentError(message, code="no_tokens")
        return completion

    if at_once == 1:
        return [answer(text) for text in texts]
    pool = ThreadPoolExecutor(at_once)
    try:
        return list(pool.map(answer, texts))
    except Exception:
        # What is asked next is not to meet requests of before.
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        # A run that is to stop does not wait for answers.
        pool.shutdown(wait=False, cancel_futures=True)


def hit_reader(server: Endpoint, *, tier: bool) -> Callable[[], float]:
    """Return what reads how many prompt tokens the tier, or the device's cache, has served. Raises DeploymentError."""
    program = server.program
    name = program.served_tokens_counter(server.version, tier=tier)
    if name is None:
        message = f"{program.title} {server.version} does not count the tokens that its caches serve"
        raise DeploymentError(message, code="no_counter")
    return lambda: server.counters().get(name, 0.0)


def served_tokens(read: Callable[[], float], before: float, expected: float) -> int:
    """Return the prompt tokens served since the counter was at `before`, at most a second after the answers."""
    deadline = time.monotonic() + _COUNTED_S
    # The metrics may be updated a moment after the answers.
    while (served := read() - before) < expected and time.monotonic() < deadline:
        time.sleep(0.1)
    return int(served)


def _from_device(
    server: Endpoint, texts: Sequence[Sequence[str]], *, every: bool
) -> tuple[list[list[Completion]], Served]:
    """Return answers without a tier, and those to the lists' first questions from the device's cache.

    The first question of each list is answered cold. With `every` the others are answered as well, all at once and by
    what the first left on the device. Each list is finished before the next, because a small device holds one alone.
    """
    read = hit_reader(server, tier=False)
    answers: list[list[Completion]] = []
    again: list[Completion] = []
    served = 0
    for first, *others in texts:
        cold = _answers(server, [first])
        before = read()
        again += _answers(server, [first])
        expected = _SERVED_SHARE * cold[0].prompt_tokens
        served += served_tokens(read, before, expected)
        if every:
            before = read()
            cold += _answers(server, others, at_once=_AT_ONCE)
            # All of it is counted before the next list is asked for.
            served_tokens(read, before, len(others) * expected)
        answers.append(cold)
    return answers, Served(again, served)


def _from_tier(server: Endpoint, texts: Sequence[str], expected: float) -> Served:
    """Return the answers from the tier behind the device, asked for until it has stored what it is to serve.

    Several are asked for at once, so that it loads several prompts at a time, as under load.
    """
    read = hit_reader(server, tier=True)
    for wait_s in STORING_S:
        time.sleep(wait_s)
        server.reset_caches(tiers=False)
        before = read()
        answers = _answers(server, texts, at_once=_AT_ONCE)
        served = served_tokens(read, before, expected)
        if served >= expected:
            break
    return Served(answers, served)


def _judges(server: Endpoint, texts: Mapping[int, str], *, tier: bool) -> Judges:
    """Return a further answer to each of the texts, computed if the server can empty its caches."""
    if not texts:
        return Judges()
    sources = [hit_reader(server, tier=False)]
    if tier:
        sources.append(hit_reader(server, tier=True))
    before = sum(source() for source in sources)
    answers = {}
    for number, text in texts.items():
        server.reset_caches()
        # Only now with log-probabilities, because at the first request for them the server compiles for up to 15 s.
        [answers[number]] = _answers(server, [text], likeliest=_LIKELIEST)
    served = served_tokens(lambda: sum(source() for source in sources), before, 1.0)
    return Judges(answers, computed=served == 0)


def check(
    server: Endpoint,
    *,
    tier: bool,
    longest: int,
    tolerance_nats: float = TOLERANCE_NATS,
) -> Answers:
    """Send prompts to a server with cold caches, then again, and compare the answers.

    The first repetition is served by the device's own cache. With `tier` another one is served by the tier behind it,
    for which the device's cache is emptied; the result is then the tier's, which has the device's as `device`.
    `longest`: tokens of a conversation; replicas get different prompts. `tolerance_nats`: see TOLERANCE_NATS. If
    nothing could be checked, `unchecked` says why; what the device's comparison showed stays where the tier cannot be
    asked.
    """
    texts = prompts(longest, server.number)
    try:
        answers, device = _from_device(server, texts, every=tier)
    except _Failures as error:
        # A server that has ended is detected by other checks.
        return Answers(unchecked=str(error))
    cold = [first for first, *_ in answers]
    prompt_tokens = sum(completion.prompt_tokens for completion in cold)
    if _all_alike(cold):
        return compare(
            cold,
            cold,
            Judges(tolerance_nats=tolerance_nats),
            0,
            prompt_tokens,
            tier=tier,
        )
    # First all the first questions, so that different prompts are loaded at a time.
    order = [
        (number, question)
        for question in range(QUESTIONS)
        for number in range(PROMPTS)
        if question < len(answers[number])
    ]
    reference = [answers[number][question] for number, question in order]
    asked = [texts[number][question] for number, question in order]
    behind, failure = None, ""
    if tier:
        try:
            behind = _from_tier(server, asked, _SERVED_SHARE * prompt_tokens)
        except _Failures as error:
            failure = str(error)
    repeated = {"device": device} | ({"tier": behind} if behind else {})
    compared = _compared(
        server, asked, reference, repeated, prompt_tokens, tolerance_nats
    )
    if not tier:
        return compared["device"]
    of_tier = compared.get("tier", Answers(unchecked=failure))
    return msgspec.structs.replace(of_tier, device=compared["device"])


def _compared(
    server: Endpoint,
    texts: Sequence[str],
    reference: Sequence[Completion],
    repeated: Mapping[str, Served],
    prompt_tokens: int,
    tolerance_nats: float,
) -> dict[str, Answers]:
    """Return the comparison of each cache; each text whose answers differ is answered once more for all of them."""
    parted = {
        number: texts[number]
        for served in repeated.values()
        for number, pair in enumerate(zip(reference, served.answers, strict=False))
        if _place(*pair) is not None
    }
    judges, failure = Judges(), ""
    try:
        judges = _judges(server, parted, tier="tier" in repeated)
    except _Failures as error:
        failure = str(error)
    compared = {}
    for source, served in repeated.items():
        comparison = compare(
            reference[: len(served.answers)],
            served.answers,
            replace(judges, tolerance_nats=tolerance_nats),
            served.tokens,
            prompt_tokens,
            tier=source == "tier",
        )
        judged = not failure or comparison.same == comparison.prompts
        compared[source] = comparison if judged else Answers(unchecked=failure)
    return compared


def compare(
    cold: Sequence[Completion],
    again: Sequence[Completion],
    judges: Judges,
    served: int,
    prompt_tokens: int,
    *,
    tier: bool,
) -> Answers:
    """Compare answers to the same prompts.

    `served`: how many of the `prompt_tokens` tokens of the different prompts the cache served.
    """
    differences = [
        _difference(number, *pair, judges)
        for number, pair in enumerate(zip(cold, again, strict=True))
        if _place(*pair) is not None
    ]
    changed = [difference for difference in differences if not difference.near_tie]
    source = "tier" if tier else "device"
    enough = served >= _SERVED_SHARE * prompt_tokens
    unchecked = ""
    if _all_alike(cold):
        unchecked = (
            "the answers do not depend on what is cached: every prompt got the same one"
        )
    elif not enough:
        unchecked = (
            f"the {source} served {served:,} of the prompts' {prompt_tokens:,} tokens"
        )
    elif differences and len(differences) > _MOST_NEAR_TIES * len(cold) and not changed:
        unchecked = (
            f"{len(differences)} of {len(cold)} answers differ, all at near ties: more than another order of additions"
            " explains"
        )
    return Answers(
        prompts=len(cold),
        tokens=TOKENS,
        same=len(cold) - len(differences),
        near_ties=len(differences) - len(changed),
        changed=len(changed),
        served_from=source if enough else "none",
        prompt_tokens=prompt_tokens,
        # A prompt whose questions are asked at once may be loaded for each of them.
        served_tokens=min(served, prompt_tokens),
        tolerance_nats=judges.tolerance_nats,
        first_difference=next(iter([*changed, *differences]), None),
        unchecked=unchecked,
    )


def combine(comparisons: Sequence[Answers]) -> Answers:
    """Return the comparisons of several servers as one; `unchecked` if one of them is."""
    sums: Counter[str] = Counter()
    for comparison in comparisons:
        sums.update({name: getattr(comparison, name) for name in _SUMMED})
    by_changes = sorted(
        comparisons, key=lambda comparison: comparison.changed, reverse=True
    )
    devices = [
        comparison.device for comparison in comparisons if comparison.device is not None
    ]
    return Answers(
        **sums,
        tokens=comparisons[0].tokens,
        served_from=comparisons[0].served_from
        if len({comparison.served_from for comparison in comparisons}) == 1
        else "none",
        tolerance_nats=comparisons[0].tolerance_nats,
        first_difference=next(
            (
                comparison.first_difference
                for comparison in by_changes
                if comparison.first_difference
            ),
            None,
        ),
        unchecked=next(
            (
                comparison.unchecked
                for comparison in comparisons
                if comparison.unchecked
            ),
            "",
        ),
        device=combine(devices) if devices else None,
    )


def _place(cold: Completion, again: Completion) -> int | None:
    """Return the index of the first token at which two answers to one prompt differ, None if they do not."""
    pairs = itertools.zip_longest(cold.tokens, again.tokens)
    return next(
        (place for place, (first, second) in enumerate(pairs) if first != second), None
    )


def _difference(
    number: int, cold: Completion, again: Completion, judges: Judges
) -> AnswerDifference:
    """Judge the first difference of two answers to one prompt; after it they continue different texts.

    It is a near tie where computing gives the one as well as the other: if another computed answer has the token of
    `again`, or differs from the cold one even before. Else where the log-probabilities of a further answer that is
    equal up to there are close. The log-probability of a token that is not among the likeliest is unknown.
    """
    place = _place(cold, again) or 0
    first, second = (
        "".join(completion.tokens[place : place + 1]) for completion in (cold, again)
    )
    margin, near_tie = None, False
    judge = judges.answers.get(number)
    if judge is not None:
        equal = judge.tokens[:place] == cold.tokens[:place]
        likeliest = (
            judge.likeliest[place] if equal and place < len(judge.likeliest) else {}
        )
        if first in likeliest and second in likeliest:
            margin = abs(likeliest[first] - likeliest[second])
            near_tie = margin <= judges.tolerance_nats
        either = not equal or judge.tokens[place : place + 1] == (second,)
        near_tie = near_tie or (judges.computed and either)
    return AnswerDifference(number, place, first, second, margin, near_tie)


def _all_alike(answers: Sequence[Completion]) -> bool:
    """Whether all prompts got the same answer, so that a wrong cache would not change it."""
    return len({tuple(completion.tokens) for completion in answers}) == 1
