"""Simulates how long requests take on a server of known speed, batch by batch, prompts and answers batched together.

A batch takes a fixed time, plus some for each answer it continues and for each prompt token it computes; what a tier
holds is copied instead. Prompts are taken in order of arrival, in chunks, as long as the device has room for them.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kveval.plugins.curve.simulation.distances import Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ServerSpeed:
    """The times of one server, seconds.

    Attributes:
        token_s: a prompt token at the beginning of a prompt.
        context_share: part of `token_s` by which a token takes longer for each token before it.
        batch_s: a batch of any content.
        answer_s: each answer that a batch continues by one token.
        request_s: from the arrival of a request until the scheduler has it.
    """

    token_s: float
    context_share: float
    batch_s: float
    answer_s: float
    request_s: float

    def prefill_s(self, before: int, end: int) -> float:
        """Return the time to compute the tokens of a prompt from number `before` to `end`."""
        return self.token_s * (
            (end - before) + self.context_share * (end * end - before * before) / 2
        )


@dataclass(frozen=True)
class TierSpeed:
    """How fast a tier copies; infinitely fast by default.

    Attributes:
        load_tokens_s: tokens to the device per second.
        store_tokens_s: tokens from the device per second; every token that is computed is stored.
        blocks: whether the device computes nothing meanwhile, as when the CPU is the device.
    """

    load_tokens_s: float = math.inf
    store_tokens_s: float = math.inf
    blocks: bool = False


@dataclass(frozen=True)
class Demanded:
    """The requests of one server in order of arrival, one entry of each array per request.

    Attributes:
        arrivals_s: arrival times, rising; None in a closed loop.
        input_tokens: of the prompts.
        output_tokens: of the answers, 1 at least.
        on_device: prompt tokens that the device holds.
        in_tier: prompt tokens after these that the tier holds.
        groups: equal for prompts that begin alike.
        pauses_s: in a closed loop, the time from each answer until its user's next question; None without pauses.
        arrival_s: in a closed loop, the time over which the first requests come.
    """

    arrivals_s: Floats | None
    input_tokens: Ints
    output_tokens: Ints
    on_device: Ints
    in_tier: Ints
    groups: Ints
    pauses_s: Floats | None = None
    arrival_s: float = 0.0


@dataclass(frozen=True)
class ServedLevel:
    """A level as it would be measured in its window.

    Attributes:
        throughput_tok_s: output tokens delivered per second.
        completed_req_s: answers completed per second.
        ttft_ms: of the requests whose first token comes in the window.
        itl_ms: for each answer completed in the window, the mean gap between its tokens.
        busy: share of the window in which the device works.
        waiting: requests that came and had no first token when the window closed.
    """

    throughput_tok_s: float
    completed_req_s: float
    ttft_ms: Floats
    itl_ms: Floats
    busy: float
    waiting: int


@dataclass
class Service:
    """One server, batch by batch, until the window closes (seconds from the start) or no request is left to send.

    `streams`: how many are in flight in a closed loop, None in an open loop. `batch_tokens`: the most that the device
    computes at once.
    """

    demanded: Demanded
    speed: ServerSpeed
    tier: TierSpeed
    window: tuple[float, float]
    streams: int | None = None
    device_tokens: float = math.inf
    batch_tokens: int = 2048

    def __post_init__(self) -> None:
        demanded, tier, self.room = self.demanded, self.tier, self.device_tokens
        self.inputs, self.outputs = (
            demanded.input_tokens.tolist(),
            demanded.output_tokens.tolist(),
        )
        self.found = (demanded.on_device + demanded.in_tier).tolist()
        self.load_s = (demanded.in_tier / tier.load_tokens_s).tolist()
        self.groups = demanded.groups.tolist()
        self.arrivals = (
            None if demanded.arrivals_s is None else demanded.arrivals_s.tolist()
        )
        self.count = len(self.inputs)
        self.pauses = (
            [0.0] * self.count
            if demanded.pauses_s is None
            else demanded.pauses_s.tolist()
        )
        self.came = [math.nan] * self.count
        self.first = [math.nan] * self.count
        self.now, self.batches = 0.0, 0
        # Requests by when the scheduler gets them; those it has; those whose copies from the tier are under way.
        self.coming: list[tuple[float, int]] = []
        self.waiting: deque[int] = deque()
        self.loading: list[tuple[float, int]] = []
        self.link_free = 0.0
        # Prompts being computed, with the next token's number; answers by the batch that ends them.
        self.prefilling: deque[list[int]] = deque()
        self.answering: list[tuple[int, int]] = []
        self.held: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.next = 0
        self.end = self.window[1]
        self.busy, self.delivered, self.completed = 0.0, 0.0, 0
        self.gaps: list[float] = []

    def simulate(self) -> ServedLevel:
        """Return the level as measured in the window."""
        if self.arrivals is None:
            streams = self.streams or 1
            for stream in range(streams):
                self._send(self.demanded.arrival_s * stream / streams)
        else:
            self.coming = [
                (time + self.speed.request_s, number)
                for number, time in enumerate(self.arrivals)
            ]
            self.came = list(self.arrivals)
        while self.now < self.end and self._work():
            pass
        start, end = self.window[0], min(self.end, self.window[1])
        first, came = np.array(self.first), np.array(self.came)
        inside = (first >= start) & (first <= end)
        seconds = max(end - start, 1e-9)
        return ServedLevel(
            throughput_tok_s=self.delivered / seconds,
            completed_req_s=self.completed / seconds,
            ttft_ms=1000 * (first - came)[inside],
            itl_ms=1000 * np.array(self.gaps),
            busy=min(1.0, self.busy / seconds),
            waiting=int(np.sum((came <= end) & ~(first <= end))),
        )

    def _send(self, time: float) -> None:
        """Have a stream send the next request; if none is left, the window ends."""
        if self.next == self.count:
            self.end = min(self.end, time)
            return
        self.came[self.next] = time
        heapq.heappush(self.coming, (time + self.speed.request_s, self.next))
        self.next += 1

    def _work(self) -> bool:
        """Do one batch, or several that are alike, or wait; False where nothing is left to be done."""
        while self.coming and self.coming[0][0] <= self.now:
            self.waiting.append(heapq.heappop(self.coming)[1])
        while self.loading and self.loading[0][0] <= self.now:
            number = heapq.heappop(self.loading)[1]
            self.prefilling.append([number, self.found[number]])
        copied_s = self._admit()
        if not self.prefilling and not self.answering:
            times = [queue[0][0] for queue in (self.coming, self.loading) if queue]
            if not copied_s and not times:
                return False
            self._pass(
                copied_s + self.speed.batch_s
                if copied_s
                else max(0.0, min(times) - self.now),
                bool(copied_s),
            )
            return True
        computed, prefill_s, done = self._chunks()
        each = self.speed.batch_s + self.speed.answer_s * len(self.answering)
        batches = 1
        if not computed and not copied_s:
            # Until an answer ends or something comes, every batch is like this one.
            batches = self.answering[0][0] - self.batches
            until = min(
                (queue[0][0] for queue in (self.coming, self.loading) if queue),
                default=self.end,
            )
            batches = max(1, min(batches, math.ceil((until - self.now) / each)))
        stored_s = computed / self.tier.store_tokens_s if self.tier.blocks else 0.0
        self._pass(
            batches * each + prefill_s + copied_s + stored_s,
            True,
            batches * len(self.answering) + len(done),
        )
        self.batches += batches
        self._ended(done)
        return True

    def _pass(self, seconds: float, working: bool, tokens: int = 0) -> None:
        """Let time pass; its tokens count by the part of the time that lies in the window."""
        inside = max(
            0.0, min(self.now + seconds, self.window[1]) - max(self.now, self.window[0])
        )
        if seconds > 0:
            self.delivered += tokens * inside / seconds
        if working:
            self.busy += inside
        self.now += seconds

    def _admit(self) -> float:
        """Admit waiting requests while the device has room; return the seconds for which copies block the device."""
        copied_s = 0.0
        while self.waiting:
            number = self.waiting[0]
            group = self.groups[number]
            # The device holds a common beginning once.
            needed = self.inputs[number] - (
                self.found[number] if self.held.get(group) else 0
            )
            if self.held and needed > self.room:
                break
            self.waiting.popleft()
            self.taken[number] = needed
            self.room -= needed
            self.held[group] = self.held.get(group, 0) + 1
            load_s = self.load_s[number]
            if not load_s:
                self.prefilling.append([number, self.found[number]])
            elif self.tier.blocks:
                copied_s += load_s
                heapq.heappush(self.loading, (self.now + copied_s, number))
            else:
                self.link_free = max(self.link_free, self.now) + load_s
                heapq.heappush(self.loading, (self.link_free, number))
        return copied_s

    def _chunks(self) -> tuple[int, float, list[int]]:
        """Fill a batch with prompts: tokens computed, seconds, and the requests whose prompts are done."""
        left = self.batch_tokens - len(self.answering)
        computed, seconds, done = 0, 0.0, []
        while self.prefilling and left > 0:
            entry = self.prefilling[0]
            number, begin = entry
            chunk = min(left, self.inputs[number] - begin)
            seconds += self.speed.prefill_s(begin, begin + chunk)
            computed += chunk
            left -= chunk
            entry[1] += chunk
            if entry[1] < self.inputs[number]:
                break
            self.prefilling.popleft()
            done.append(number)
        return computed, seconds, done

    def _ended(self, done: list[int]) -> None:
        """Begin the answers whose prompts are done, and end those that are complete."""
        for number in done:
            self.first[number] = self.now
            heapq.heappush(
                self.answering, (self.batches + self.outputs[number] - 1, number)
            )
        while self.answering and self.answering[0][0] <= self.batches:
            number = heapq.heappop(self.answering)[1]
            self.room += self.taken.pop(number)
            group = self.groups[number]
            self.held[group] -= 1
            if not self.held[group]:
                del self.held[group]
            if self.window[0] <= self.now <= self.window[1]:
                self.completed += 1
                if self.outputs[number] > 1:
                    self.gaps.append(
                        (self.now - self.first[number]) / (self.outputs[number] - 1)
                    )
            if self.arrivals is None:
                self._send(self.now + self.pauses[number])
