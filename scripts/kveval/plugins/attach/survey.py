"""The whole of `kveval attach`: what answers at an address, and what it shows."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kveval.host.http import HttpError
from kveval.plugins.attach.capacity import (
    Capacity,
    CapacityError,
    CapacityPlan,
    declared_tokens,
    fill_and_ask,
    plan_search,
)
from kveval.plugins.attach.client import AddressError, Client, SurveyStopped
from kveval.plugins.attach.judgement import (
    SameAnswers,
    TierActivity,
    next_steps,
    same_answers,
    tier_activity,
)
from kveval.plugins.attach.meter import Counts, ForeignTraffic, Meter
from kveval.plugins.attach.prefix import PrefixRequests, SourceTimes, Target, measure
from kveval.stacks.counters import CounterError, MetricSample, parse_samples
from kveval.stacks.registry import RUNNING_SERVERS
from kveval.stacks.running_server import OtherServer, RunningServer, model_entries

INTERRUPTED = "Ctrl-C"
SOURCES = ("cold", "device", "tier", "unloaded")
_QUIET_S = 1.0
_FIRST_TEXT = "The first request of this hour asks for one token, and"


@dataclass(frozen=True)
class Options:
    """The things that a survey may do.

    Attributes:
        model: the name to ask for; "" for the server's first.
        share: of the device's cache that the prefixes may take together, 0 to 1.
        empties_device: whether to empty the device's cache; None: only if nobody else is seen.
        capacity: whether to search for the capacity.
        capacity_tokens: how many tokens to send for it; None: by what is declared.
    """

    model: str = ""
    share: float = 0.02
    empties_device: bool | None = None
    capacity: bool = False
    capacity_tokens: int | None = None


@dataclass
class Survey:
    """All that was found out; `stopped`: why nothing more was asked, "" if all was."""

    target: Target
    models: list[str]
    at_start: Counts
    requests: PrefixRequests = field(default_factory=PrefixRequests)
    times: dict[str, SourceTimes] = field(default_factory=dict)
    activity: TierActivity = field(default_factory=TierActivity)
    same: SameAnswers = field(default_factory=SameAnswers)
    foreign: ForeignTraffic = field(default_factory=ForeignTraffic)
    capacity: Capacity | None = None
    capacity_reason: str = ""
    next_steps: list[str] = field(default_factory=list)
    stopped: str = ""
    seconds: float = 0.0

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of a token in the tier, by what was loaded, else by what was stored; None if neither is counted."""
        rise, capacity = self.target.meter.so_far, self.capacity
        if rise.load_bytes and rise.tier_tokens:
            return rise.load_bytes / rise.tier_tokens
        return None if capacity is None else capacity.stored_bytes_per_token

    @property
    def declared_tokens(self) -> int | None:
        """The tokens that the larger of device and tier holds, as declared; None if nothing declares it."""
        return declared_tokens(self.target.facts, self.bytes_per_token)


Agree = Callable[[CapacityPlan], bool]
"""Whether the user agrees to a search for the capacity."""


def survey(
    client: Client, options: Options, agree: Agree, say: Callable[[str], None]
) -> Survey:
    """Find out what answers, and measure it. Raises AddressError if nothing can be asked.

    What stops it later is in the survey, with all that was found before.
    """
    begin = time.monotonic()
    target, models = _recognise(client, options.model)
    meter = target.meter
    meter.begin(_QUIET_S)
    say(f"{target.program.title} {target.version or '?'} serves {target.model}")
    _first_request(target)
    target = replace(target, may_empty=lambda: _may_empty(meter, options))
    result = Survey(target, models, meter.at_start)
    requests, block = result.requests, target.facts.block_tokens
    try:
        say("timing three prefixes")
        measure(requests, target, options.share)
    except SurveyStopped as stop:
        result.stopped = str(stop)
    except KeyboardInterrupt:
        result.stopped = INTERRUPTED
    meter.settle()
    requests.several_servers = meter.several_servers
    result.times = {source: requests.times(source, block) for source in SOURCES}
    # Differing answers are requested once more.
    if result.stopped != INTERRUPTED:
        result.same = same_answers(target, requests)
    if options.capacity and not result.stopped:
        _search_capacity(result, options, agree, say)
    # What was sent last may not be counted yet.
    meter.settle()
    capacity = result.capacity
    result.activity = tier_activity(target, requests, result.times, capacity)
    result.foreign = meter.foreign()
    result.next_steps = next_steps(
        target, result.activity, result.times, result.same, result.foreign, capacity
    )
    result.seconds = round(time.monotonic() - begin, 1)
    return result


def _recognise(client: Client, model: str) -> tuple[Target, list[str]]:
    """Return what answers at the address and the names of its models. Raises AddressError."""
    try:
        listed = client.ask("/v1/models", timeout_s=10.0)
    except HttpError as error:
        raise _as_address_error(error, client) from error
    entries = model_entries(listed)
    names = [str(entry.get("id")) for entry in entries]
    if not names:
        message = f"{client.url} answers, but lists no model at /v1/models: it is no server of OpenAI's form"
        raise AddressError(message, code="no_models")
    if model and model not in names:
        message = f"{client.url} does not serve {model}; it serves {', '.join(names)}"
        raise AddressError(message, code="unknown_model", names=names)
    program, samples, closed = _program(client, listed)
    entry = entries[names.index(model)] if model else entries[0]
    try:
        version = program.version(client.ask)
    except HttpError:
        version = ""
    room = entry.get("max_model_len")
    target = Target(
        client=client,
        program=program,
        version=version,
        model=str(entry.get("id")),
        room_tokens=int(room) if room else None,
        facts=program.facts(samples, client.ask),
        meter=Meter(client, program, closed),
    )
    return target, names


def _program(
    client: Client, models: Any
) -> tuple[RunningServer, list[MetricSample], str]:
    """Return the program that answers, the lines of its metrics, and why there are none."""
    page, closed = "", ""
    samples: list[MetricSample] = []
    try:
        page = client.metrics_page(RunningServer.metrics_path)
        samples = parse_samples(page)
    except (HttpError, CounterError) as error:
        closed = f"its metrics are not readable: {error}"
    for program in RUNNING_SERVERS:
        if program.answers_as(models, page):
            return program, samples, closed
    return OtherServer(), samples, closed or "its counters are not known here"


def _as_address_error(error: HttpError, client: Client) -> AddressError:
    """Return what is wrong with an address or a key, and what would be right."""
    status = error.facts.get("status")
    if status in (401, 403):
        given = "the key that was given" if client.key else "requests without a key"
        message = f"{client.url} refuses {given} ({status}): name the environment variable that has the key with --key-env"
        return AddressError(message, code="key_refused")
    if status == 404:
        message = f"{client.url} has no /v1/models: it is no server of OpenAI's form, or a path is missing in the address"
        return AddressError(message, code="no_models")
    return AddressError(f"nothing can be asked: {error}", code="no_answer")


def _first_request(target: Target) -> None:
    """Ask for one token, before anything else is sent. Raises AddressError."""
    try:
        target.send(_FIRST_TEXT, 1)
    except SurveyStopped as stop:
        status = stop.facts.get("status")
        if status in (401, 403):
            cause = HttpError(str(stop), status=status)
            raise _as_address_error(cause, target.client) from stop
        message = f"the first request failed, so nothing more was sent: {stop}"
        raise AddressError(message, code="first_request") from stop


def _may_empty(meter: Meter, options: Options) -> str:
    """Return why the device's cache may not be emptied; "" if it may."""
    if options.empties_device:
        return ""
    if options.empties_device is False:
        return "--no-reset: the device's cache is left as it is"
    foreign = meter.foreign()
    running = foreign.running_most or meter.running_now()
    nevertheless = "so its device's cache was not emptied: --reset does it nevertheless"
    if running or foreign.size in ("named", "large"):
        return f"others use this server, {nevertheless}"
    if foreign.size == "unknown":
        return f"whether others use this server is not known, {nevertheless}"
    return ""


def _search_capacity(
    result: Survey, options: Options, agree: Agree, say: Callable[[str], None]
) -> None:
    """Search for the capacity, if the user agrees to what it does."""
    target, cold = result.target, result.times["cold"]
    begin = time.monotonic()
    target.meter.skip()
    reading_ms = 1000 * (time.monotonic() - begin)
    try:
        plan = plan_search(
            target,
            declared=result.declared_tokens,
            tokens=options.capacity_tokens,
            cold_ms_per_token=(cold.median_ms or 0.0) / max(1, cold.prompt_tokens),
            hit_ms=(result.times["device"].median_ms or 0.0) + reading_ms,
        )
    except CapacityError as error:
        result.capacity_reason = str(error)
        return
    if not agree(plan):
        result.capacity_reason = "not agreed to: --yes, or an answer at the terminal"
        return
    say(f"sending {plan.contexts} contexts of {plan.context_tokens:,} tokens")
    result.capacity = Capacity(plan)
    try:
        fill_and_ask(result.capacity, target)
    except SurveyStopped as stop:
        result.stopped = str(stop)
    except KeyboardInterrupt:
        result.stopped = INTERRUPTED
