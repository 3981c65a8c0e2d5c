"""Three numbers of a prefix: the time to the first token computed, from the device's cache, and from the tier.

Three texts that nobody has sent before are answered cold, then at once again by the device's cache. The tier answers
where the device's copy is gone, for which the device's cache alone is emptied. For the comparison of answers each text
is computed a second time: with loading switched off, where a request can say so, else as a text with another salt.
"""

import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from kveval.engines.servers.one_request import SERVED_SHARE, number_lines
from kveval.host.http import HttpError
from kveval.plugins.attach.client import Client, StreamedAnswer
from kveval.plugins.attach.meter import Meter, Window
from kveval.stacks.running_server import RunningFacts, RunningServer

PREFIXES = 3
ANSWER_TOKENS = 16
SEVERAL_SERVERS = "several servers answer here: the counters do not have what was sent"
LEAST_TOKENS = 256
"""Tokens of the shortest prefix: caches keep blocks, some of them of 256 tokens, and a shorter one shows nothing."""
_MOST_TOKENS = 10_000
_UNKNOWN_DEVICE_TOKENS = 1_000
_UNKNOWN_ROOM_TOKENS = 2_000
# Seconds that computing one prefix may take, by the time of a short text, which overestimates it.
_COLD_S = 2.0
# Of the longest conversation, because the tokens of a text are known by an estimate.
_ROOM_SHARE = 0.9
_TRIAL_LINES = 8
# With another salt a text takes its room once more.
_COPIES = 2
_STORING_S = (0.5, 2.0)
_EMPTYING_S = 10.0
_CLOSED = (401, 403, 404, 405, 501)


@dataclass(frozen=True)
class Target:
    """The server that is asked, as what it is known to be."""

    client: Client
    program: RunningServer
    version: str
    model: str
    room_tokens: int | None
    facts: RunningFacts
    meter: Meter
    may_empty: Callable[[], str] = str
    """Returns why the device's cache may not be emptied now, "" if it may."""

    def send(
        self, text: str, tokens: int, *, salt: str = "", loads: bool = True
    ) -> Window:
        """Send one text and return its answer with what the counters rose by. Raises SurveyStopped."""
        body = self.program.text_request(
            self.model, text, tokens, salt=salt, loads=loads
        )
        return self.meter.window(self.client.complete(body))

    def empty_device(self) -> str:
        """Empty the device's cache alone; return "", or why it was not emptied: others may have come meanwhile."""
        if not self.program.empties_device_alone:
            return self.program.advice.emptying
        if reason := self.may_empty():
            return reason
        deadline = time.monotonic() + _EMPTYING_S
        try:
            while not self.program.emptied(self.client.ask, tiers=False):
                if time.monotonic() > deadline:
                    return f"the server refused for {_EMPTYING_S:.0f} s to empty the device's cache: requests of others run"
                time.sleep(0.5)
        except HttpError as error:
            if error.facts.get("status") in _CLOSED:
                return f"the endpoint that empties the device's cache is closed: {self.program.advice.emptying}"
            return str(error)
        self.meter.skip()
        return ""


@dataclass(frozen=True)
class SourceTimes:
    """Times to the first token of the prompts that came from one source, ms.

    `proof`: "counters", "usage" (of the answers), or "time" where nothing tells what served them; `reason`: why there is
    no time.
    """

    ttft_ms: tuple[float, ...] = ()
    prompt_tokens: int = 0
    served_tokens: int = 0
    proof: str = ""
    reason: str = ""

    @property
    def median_ms(self) -> float | None:
        """The median of the times."""
        return statistics.median(self.ttft_ms) if self.ttft_ms else None


@dataclass
class PrefixRequests:
    """The requests for the prefixes by what was to serve them, each by the number of its text; and what there is not."""

    texts: list[str] = field(default_factory=list)
    prefix_tokens: int = 0
    below_least: bool = False
    """Whether the share of the device is less than the shortest prefixes take."""
    cold: dict[int, Window] = field(default_factory=dict)
    device: dict[int, Window] = field(default_factory=dict)
    tier: dict[int, Window] = field(default_factory=dict)
    unloaded: dict[int, Window] = field(default_factory=dict)
    salted: dict[int, Window] = field(default_factory=dict)
    tier_reason: str = ""
    several_servers: bool = False
    """Whether the counters are those of another server than the one that answers, or of one among them."""
    emptied: int = 0
    """How often the device's cache was emptied."""

    def times(self, source: str, block_tokens: int | None) -> SourceTimes:
        """Return the times of a source: "cold", "device", "tier" or "unloaded" (computed, loading switched off)."""
        windows: Mapping[int, Window] = getattr(self, source)
        if not windows:
            reason = self.tier_reason if source in ("tier", "unloaded") else ""
            return SourceTimes(reason=reason or "not requested")
        if self.several_servers and source != "cold":
            # Which of them has kept a prefix, and which answered, is not known.
            windows = {
                number: window for number, window in windows.items() if window.own
            }
            if not windows:
                return SourceTimes(reason=SEVERAL_SERVERS)
        expected = "cold" if source == "unloaded" else source
        return times_from(windows.values(), expected, block_tokens)

    @property
    def second_cold(self) -> Mapping[int, Window]:
        """The second computations of the texts."""
        return self.unloaded or self.salted


def measure(requests: PrefixRequests, target: Target, share: float) -> None:
    """Send the prefixes, and add each request to `requests` as it is answered. Raises SurveyStopped.

    `share`: of the device's cache that they may take together, 0 to 1.
    """
    _choose_texts(requests, target, share)
    salts = [uuid.uuid4().hex if target.program.salted else "" for _ in requests.texts]
    for number, text in enumerate(requests.texts):
        salt = salts[number]
        requests.cold[number] = target.send(text, ANSWER_TOKENS, salt=salt)
        # At once, because a small device holds only one.
        requests.device[number] = target.send(text, ANSWER_TOKENS, salt=salt)
    _ask_tier(requests, target, salts)
    switches = target.program.switches_loading(target.version, target.facts)
    if switches and requests.tier:
        _ask_without_loading(requests, target, salts)
    if target.program.salted and not requests.unloaded:
        for number, text in enumerate(requests.texts):
            other = uuid.uuid4().hex
            requests.salted[number] = target.send(text, ANSWER_TOKENS, salt=other)


def _choose_texts(requests: PrefixRequests, target: Target, share: float) -> None:
    """Choose texts of a length that the device, the model and the clock allow. Raises SurveyStopped."""
    trial = number_lines(_TRIAL_LINES)
    answer = target.send(trial, 1).answer
    by_time = answer.prompt_tokens * 1000 * _COLD_S / answer.ttft_ms
    room = target.room_tokens
    within = [
        _MOST_TOKENS,
        int(_ROOM_SHARE * room) if room else _UNKNOWN_ROOM_TOKENS,
        int(by_time),
    ]
    device = target.facts.device_tokens
    by_share = _UNKNOWN_DEVICE_TOKENS
    if device:
        left = share * device - target.client.prompt_tokens
        by_share = int(left / (PREFIXES * _COPIES))
    # A cache serves whole blocks.
    least = max(LEAST_TOKENS, 2 * (target.facts.block_tokens or 0))
    requests.below_least = by_share < least
    tokens = max(least, min(by_share, *within))
    lines = max(1, int(tokens * _TRIAL_LINES / answer.prompt_tokens))
    requests.texts = [_question(lines) for _ in range(PREFIXES)]
    requests.prefix_tokens = tokens


def _question(lines: int) -> str:
    """Return lines of random numbers with a question about the first, which needs a correct cache."""
    text = number_lines(lines)
    return f"{text}Once more: {text.partition(' is ')[0]} is"


def _ask_tier(requests: PrefixRequests, target: Target, salts: list[str]) -> None:
    """Ask for the texts where the device's copies are gone, once the tier has stored them in the background.

    The newest is requested first, because a small tier has dropped the others.
    """
    block = target.facts.block_tokens
    for wait_s in _STORING_S:
        time.sleep(wait_s)
        requests.tier_reason = target.empty_device()
        if requests.tier_reason:
            return
        requests.emptied += 1
        requests.tier = {}
        for number in reversed(range(len(requests.texts))):
            window = target.send(
                requests.texts[number], ANSWER_TOKENS, salt=salts[number]
            )
            requests.tier[number] = window
            if place_of(window, block) in ("cold", "part"):
                # What is computed now takes the place of what the tier still has.
                break
        newest = requests.tier[len(requests.texts) - 1]
        if place_of(newest, block) not in ("cold", "part"):
            return


def _ask_without_loading(
    requests: PrefixRequests, target: Target, salts: list[str]
) -> None:
    """Ask for the texts of the tier once more, with loading switched off, so that they are computed."""
    reason = target.empty_device()
    if reason:
        return
    requests.emptied += 1
    for number in requests.tier:
        requests.unloaded[number] = target.send(
            requests.texts[number], ANSWER_TOKENS, salt=salts[number], loads=False
        )


def place_of(window: Window, block_tokens: int | None) -> str | None:
    """Return what served a prompt: "cold", "device", "tier", "cache" (one of the two), "part" of it, or None: unknown."""
    answer, rise = window.answer, window.rise
    block = block_tokens or 1
    # The last token is always computed, and only whole blocks are kept.
    kept = (answer.prompt_tokens - 1) // block * block
    needed = max(1.0, SERVED_SHARE * kept)
    if window.own and rise.device_tokens is not None and rise.tier_tokens is not None:
        if rise.tier_tokens >= needed:
            return "tier"
        if rise.device_tokens >= needed:
            return "device"
        return "part" if rise.tier_tokens or rise.device_tokens else "cold"
    if answer.cached_tokens is None:
        return None
    if answer.cached_tokens >= needed:
        return "cache"
    return "part" if answer.cached_tokens else "cold"


def served_tokens(window: Window) -> int:
    """Return the prompt tokens that caches served, as far as it is known."""
    rise, cached = window.rise, window.answer.cached_tokens
    if window.own and rise.device_tokens is not None:
        return int(rise.device_tokens + (rise.tier_tokens or 0))
    return cached or 0


def times_from(
    windows: Iterable[Window], source: str, block_tokens: int | None
) -> SourceTimes:
    """Return the times of the requests that `source` served, or of which it is not known."""
    requests = list(windows)
    places = [place_of(window, block_tokens) for window in requests]
    fitting = {source, None} | ({"cache"} if source != "cold" else set())
    counted = [
        window
        for window, place in zip(requests, places, strict=True)
        if place in fitting
    ]
    if not counted:
        served = sum(map(served_tokens, requests))
        tokens = sum(window.answer.prompt_tokens for window in requests)
        reason = f"caches served {served:,} of the prompts' {tokens:,} tokens"
        return SourceTimes(reason=reason)
    answers = [window.answer for window in counted]
    return SourceTimes(
        ttft_ms=tuple(answer.ttft_ms for answer in answers),
        prompt_tokens=round(statistics.median(_lengths(answers))),
        served_tokens=round(statistics.median(map(served_tokens, counted))),
        proof=_proof(counted, places),
    )


def _lengths(answers: Iterable[StreamedAnswer]) -> list[int]:
    return [answer.prompt_tokens for answer in answers]


def _proof(counted: list[Window], places: list[str | None]) -> str:
    """Return what tells the source of the requests that count: the weakest of them."""
    if None in places:
        return "time"
    return "counters" if all(window.own for window in counted) else "usage"
