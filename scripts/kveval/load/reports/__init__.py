"""Typed reading of load reports: one decoder per schema, and here the neutral result for everything after it.

`reading.read_report` reads a file of GuideLLM 0.2 to 0.8 or of `vllm bench serve`. What differs between versions ends
here: one set of definitions and units; docs/importing.md says what each version's numbers mean.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

from kveval.host.errors import Failure
from kveval.load.reports.data import SyntheticData

Status = Literal["completed", "incomplete", "errored"]
CLOSED_LOOP = ("synchronous", "concurrent")
"""Strategies that keep a fixed number of requests in flight; the others do not."""
SCHEDULED = ("constant", "poisson", "trace")
"""Strategies that set the time of every request in advance, whether or not earlier ones were answered."""


class ReportFileError(Failure):
    """A report cannot be used; the message says which, why and what would be right."""


# A struct, because there are hundreds of thousands: ten times as fast to make as a frozen dataclass.
class RequestRecord(msgspec.Struct, frozen=True, gc=False):
    """One request as the load generator saw it; times in epoch seconds UTC, None where the event never happened.

    `output_tokens` counts what was delivered, also of a request that was cut off. `tpot_ms` is the time from the
    request's start to its last token over its output tokens (it includes the time to the first token), `itl_ms` the
    mean gap between tokens after the first. `due` is when an open loop's schedule, or a user after a pause, had it sent,
    if the version records it. `pause_s` is the user's pause after its answer; None if there is none.
    """

    status: Status
    start: float | None
    first_token: float | None
    last_token: float | None
    end: float | None
    prompt_tokens: int | None
    output_tokens: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    conversation: str | None = None
    turn: int | None = 0
    due: float | None = None
    pause_s: float | None = None


@dataclass(frozen=True, slots=True)
class Statistics:
    """A distribution as the report sums it up; `p50`, `p90` and `p99` are None where the version has none."""

    count: int
    mean: float
    total: float
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class ByStatus:
    """A quantity by the way its requests ended; None where nothing was observed.

    `everything` is what GuideLLM calls `total`. For latencies it is no mean of latencies: from 0.4 on, requests that
    never had the event enter it as 0.
    """

    completed: Statistics | None = None
    incomplete: Statistics | None = None
    everything: Statistics | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The report's own statistics over the requests of the window, in the version's own definitions.

    Milliseconds and tokens. `tpot_ms` and `itl_ms` are weighted by token. `tpot_includes_first_token` says what
    `tpot_ms` is: from the request's start to its last token (GuideLLM 0.4 and later), or from the first token to the
    last, both over all output tokens. `delivered_tokens` are the output tokens of the window, those of requests cut
    off included as far as the version counts them; `output_tok_s` is the report's rate of tokens, whose meaning changes
    with every version: it serves to reproduce what was published from it and nothing else.
    """

    tpot_includes_first_token: bool = True
    delivered_tokens: float | None = None
    ttft_ms: ByStatus = ByStatus()
    tpot_ms: ByStatus = ByStatus()
    itl_ms: ByStatus = ByStatus()
    e2e_ms: ByStatus = ByStatus()
    prompt_tokens: ByStatus = ByStatus()
    output_tokens: ByStatus = ByStatus()
    concurrency: ByStatus = ByStatus()
    output_tok_s: ByStatus = ByStatus()


@dataclass(frozen=True, slots=True)
class LevelReport:
    """One benchmark of a report: its measurement window (epoch seconds, warm-up and cool-down cut off) and requests.

    `requests` are all records kept, those of the warm-up too. `completed`, `incomplete` and `errored` are the
    generator's own totals for the window; `requests_missing` is how many finished requests the report did not keep, and
    `latencies_kept` tells that `aggregate` covers them nevertheless, from latencies that came without the times of
    their starts. `streams` is the number of requests that the strategy keeps in flight, `rate_req_s` what an open
    loop sends. `run_number` is that of `vllm bench sweep`, from 0, negative for its warm-up; `turns` those of a
    conversation, where only the program says it and not its data.
    """

    strategy: str
    streams: int | None
    start: float
    end: float
    warmup_s: float
    completed: int
    incomplete: int
    errored: int
    requests: tuple[RequestRecord, ...]
    requests_missing: int
    rate_req_s: float | None = None
    aggregate: Aggregate = Aggregate()
    data: SyntheticData | None = None
    model: str | None = None
    latencies_kept: bool = False
    run_number: int | None = None
    turns: int | None = None

    @property
    def closed_loop(self) -> bool:
        """Whether the number of requests in flight was fixed."""
        return self.strategy in CLOSED_LOOP


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A report of any version; `guidellm_version` is the program's name where it is not GuideLLM."""

    guidellm_version: str
    levels: tuple[LevelReport, ...]
