"""`kveval attach`: what a server that runs already is, and what it shows in about a minute."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import typer

from kveval.campaign.sizing import GIB
from kveval.host.errors import Failure
from kveval.host.findings import aligned
from kveval.host.redaction import Redactor
from kveval.plugins.attach.capacity import Capacity, CapacityPlan
from kveval.plugins.attach.client import AddressError, Client, Limits
from kveval.plugins.attach.judgement import SameAnswers
from kveval.plugins.attach.meter import ForeignTraffic
from kveval.plugins.attach.prefix import SourceTimes
from kveval.plugins.attach.survey import INTERRUPTED, Options, Survey, survey
from kveval.stacks.running_server import RunningFacts
from kveval.workflow.command.exits import BY_CTRL_C, MISTAKE, NO, Ended
from kveval.workflow.command.output import print_document

_SOURCES = {
    "cold": "computed",
    "device": "from the device's cache",
    "tier": "from the tier",
    "unloaded": "computed, loading switched off",
}
_MISTAKES = ("address_error", "key_refused", "unknown_model", "no_models")
_UNKNOWN = "unknown"


def show_attached(
    url: str,
    options: Options,
    limits: Limits,
    *,
    metrics_url: str,
    key_variable: str,
    agrees: bool,
    as_recipe: bool,
    as_json: bool,
) -> None:
    """Ask the server at `url` and print what came of it; a key is in the environment variable `key_variable`.

    Ends with 2 for an address, a key or a model's name that is wrong, with 1 if a bound or a failure stopped it.
    """
    key = _key(key_variable)
    secrets = Redactor({key_variable: key} if key else {})

    def say(text: str) -> None:
        print(secrets.text(text), file=sys.stderr, flush=True)

    def agree(plan: CapacityPlan) -> bool:
        return _agree(plan, agrees=agrees)

    try:
        client = Client(url, key, metrics_url, limits)
        result = survey(client, options, agree, say)
    except Failure as failure:
        mistake = isinstance(failure, AddressError) and failure.code in _MISTAKES
        say(str(failure) if mistake else f"FAILED: {failure}")
        raise Ended(MISTAKE if mistake else NO) from None
    if as_json:
        print_document(_without_secrets(secrets, survey_document(result)))
    else:
        text_of = recipe_table if as_recipe else survey_text
        print(secrets.text(text_of(result)))
    if result.stopped:
        say(f"STOPPED: {result.stopped}")
        raise Ended(BY_CTRL_C if result.stopped == INTERRUPTED else NO)


def _key(variable: str) -> str:
    """Return the key that a variable of the environment has."""
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        print(f"--key-env {variable}: no such variable is set", file=sys.stderr)
        raise Ended(MISTAKE)
    return key


def _agree(plan: CapacityPlan, *, agrees: bool) -> bool:
    """Say what a search for the capacity does, and return whether the user agrees to it."""
    declared = _tokens(plan.declared_tokens)
    print(
        f"--capacity sends {plan.contexts} contexts of {plan.context_tokens:,} tokens, {plan.tokens:,} in all, and asks for"
        f" them again: {plan.requests} requests at most, about {plan.seconds:.0f} s.\nThe caches then hold these in place of"
        f" what they hold of others, up to {plan.tokens:,} tokens (declared: {declared}).",
        file=sys.stderr,
        flush=True,
    )
    if agrees:
        return True
    if not sys.stdin.isatty():
        return False
    return typer.confirm("Go on?", err=True)


def _without_secrets(secrets: Redactor, value: Any) -> Any:
    if isinstance(value, str):
        return secrets.text(value)
    if isinstance(value, Mapping):
        return {name: _without_secrets(secrets, part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(secrets, part) for part in value]
    return value


def survey_document(result: Survey) -> dict[str, Any]:
    """Return all of a survey as JSON has it; times in ms, shares from 0 to 1, None for what is not known."""
    target, capacity = result.target, result.capacity
    facts = asdict(target.facts)
    requests = result.requests
    return {
        "url": target.client.url,
        "server": {
            "program": target.program.name,
            "version": target.version or None,
            "model": target.model,
            "models": result.models,
            "max_model_len": target.room_tokens,
            **facts,
            "metrics_closed": target.meter.closed or None,
        },
        "since_start": asdict(result.at_start),
        "prefix": {
            source: {**asdict(times), "median_ms": times.median_ms}
            for source, times in result.times.items()
        },
        "tier": asdict(result.activity),
        "answers": asdict(result.same),
        "foreign_traffic": {
            **asdict(result.foreign),
            "share": result.foreign.share,
            "size": result.foreign.size,
        },
        "capacity": None if capacity is None else _capacity_document(result, capacity),
        "capacity_reason": result.capacity_reason or None,
        "recipe": _recipe_row(result),
        "next": result.next_steps,
        "sent": {
            "requests": target.client.requests,
            "prompt_tokens": target.client.prompt_tokens,
            "device_emptied": requests.emptied,
            "device_share": _device_share(result),
        },
        "stopped": result.stopped or None,
        "seconds": result.seconds,
    }


def _capacity_document(result: Survey, capacity: Capacity) -> dict[str, Any]:
    declared = result.declared_tokens
    retained = capacity.retained_tokens
    return {
        "retained_tokens": retained,
        "retained_bytes": _bytes(retained, result.bytes_per_token),
        "at_least": capacity.at_least,
        "declared_tokens": declared,
        "share_of_declared": retained / declared if declared else None,
        "device_tokens": capacity.device_tokens,
        "tier_tokens": capacity.tier_tokens,
        "other_tokens": capacity.other_tokens,
        "contexts": capacity.plan.contexts,
        "context_tokens": capacity.plan.context_tokens,
        "sent_tokens": capacity.sent_tokens,
        "asked": capacity.asked,
        "proof": capacity.proof,
    }


def survey_text(result: Survey) -> str:
    """Return a survey as people read it."""
    return "\n".join(_lines(result))


def _lines(result: Survey) -> Iterator[str]:
    target = result.target
    yield from aligned([*_server_rows(result)])
    yield ""
    length = result.times["cold"].prompt_tokens
    yield f"A prefix of {length:,} tokens, time to the first token in ms, median of"
    rows = [_times_row(source, times) for source, times in result.times.items()]
    yield from aligned([row for row in rows if row])
    yield ""
    yield from aligned([*_verdict_rows(result)])
    yield ""
    sent = f"{target.client.requests} requests, {target.client.prompt_tokens:,} prompt tokens"
    share = _device_share(result)
    room = f"; the prefixes took {100 * share:.1f} % of the device" if share else ""
    emptied = result.requests.emptied
    cleared = f"; the device's cache was emptied {emptied} times" if emptied else ""
    yield f"Sent in {result.seconds:.0f} s: {sent}{room}{cleared}."
    if result.requests.below_least:
        yield (
            f"Shorter prefixes than {result.requests.prefix_tokens:,} tokens show nothing, so this small device gave up more"
            " of its cache than --share says."
        )
    if result.next_steps:
        yield ""
        yield "Next:"
        yield from (f"- {step}" for step in result.next_steps)


def _server_rows(result: Survey) -> Iterator[tuple[str, str]]:
    target = result.target
    facts = target.facts
    yield "server", f"{target.program.title} {target.version or '(version unknown)'}"
    others = len(result.models) - 1
    room = _tokens(target.room_tokens)
    more = f"; {others} more models" if others else ""
    yield "model", f"{target.model}, conversations up to {room}{more}"
    yield "device", _device_text(facts)
    yield "tier", _tier_text(facts)
    yield "read from", ", ".join(facts.read_from) or "nothing that tells of caches"
    if target.meter.closed:
        yield "counters", f"closed: {target.meter.closed}"


def _device_text(facts: RunningFacts) -> str:
    if facts.device_tokens is None:
        return f"size {_UNKNOWN}"
    blocks = ""
    if facts.device_blocks and facts.block_tokens:
        blocks = f" ({facts.device_blocks:,} blocks of {facts.block_tokens})"
    engines = f", in each of {facts.engines} engines" if facts.engines > 1 else ""
    off = "; serves no later request" if facts.device_caching is False else ""
    return f"{_tokens(facts.device_tokens)}{blocks}{engines}{off}"


def _tier_text(facts: RunningFacts) -> str:
    if facts.connector == "":
        return "none is configured"
    size = f"size {_UNKNOWN}"
    if facts.tier_tokens:
        size = _tokens(facts.tier_tokens)
    if facts.tier_bytes:
        size = f"{facts.tier_bytes / GIB:.3g} GiB ({facts.tier_bytes:,} bytes)"
    return f"{facts.connector or _UNKNOWN}, {size}"


def _times_row(source: str, times: SourceTimes) -> tuple[str, str] | None:
    name = f"  {_SOURCES[source]}"
    if not times.ttft_ms:
        return None if source == "unloaded" else (name, f"- ({times.reason})")
    least, most = min(times.ttft_ms), max(times.ttft_ms)
    spread = f"{len(times.ttft_ms)} ({least:.1f} to {most:.1f})"
    known = {
        "counters": "by its counters",
        "usage": "by the usage of its answers",
        "time": "BY TIME ALONE: nothing tells what served them",
    }[times.proof]
    return name, f"{times.median_ms:.1f}, {spread}, {known}"


def _verdict_rows(result: Survey) -> Iterator[tuple[str, str]]:
    activity = result.activity
    proof = f" (by {activity.proof})" if activity.proof else ""
    yield "tier", f"{activity.state.upper()}{proof}: {activity.why}"
    yield "answers", _answers_text(result.same)
    yield "others", _foreign_text(result.foreign)
    yield "retained", _capacity_text(result)


def _answers_text(same: SameAnswers) -> str:
    if same.state == "unknown":
        return f"not compared: {same.why}"
    text = (
        f"{same.same} of {same.prompts} the same, computed and from the {same.source}"
    )
    if same.near_ties:
        text += f"; {same.near_ties} differ at a near tie, as another order of additions does"
    if same.changed:
        text += f"; {same.changed} CHANGED"
    if same.first_token is not None:
        apart = "further apart than the likeliest few"
        if same.margin_nats is not None:
            apart = f"{same.margin_nats:.3f} nats apart"
        text += f" (first at token {same.first_token + 1}, {apart})"
    if not same.cold_prompts:
        return f"{text}; none was computed twice"
    return (
        f"{text}; {same.cold_same} of {same.cold_prompts} computed twice are the same"
    )


def _foreign_text(foreign: ForeignTraffic) -> str:
    if foreign.share is None:
        counted = foreign.counted_share
        if counted is None:
            return f"{_UNKNOWN}: the counters are not readable"
        return f"{_UNKNOWN}: the counters have {100 * counted:.0f} % of what was sent, so several servers answer here"
    percent = 100 * foreign.share
    running = f"; up to {foreign.running_most} of their requests at once"
    if foreign.size == "none":
        seen = running if foreign.running_most else ""
        return f"{percent:.1f} % of the traffic: nobody else that matters{seen}"
    warning = "times include waiting for them"
    if foreign.size == "large":
        warning = "NO TIME HERE IS ONE OF A QUIET SERVER"
    return f"{percent:.0f} % of the traffic was others'{running}: {warning}"


def _capacity_text(result: Survey) -> str:
    capacity = result.capacity
    if capacity is None:
        held = result.times["tier"].served_tokens * len(result.times["tier"].ttft_ms)
        why = f" ({result.capacity_reason})" if result.capacity_reason else ""
        amount = _amount(held, result.bytes_per_token)
        return f"at least {amount}{why}" if held else f"{_UNKNOWN}{why}"
    if not capacity.asked:
        return f"{_UNKNOWN}: it stopped before the contexts were asked for again"
    amount = _amount(capacity.retained_tokens, result.bytes_per_token)
    parts = f"device {capacity.device_tokens:,}, tier {capacity.tier_tokens:,}"
    if capacity.other_tokens:
        parts = f"by {capacity.proof}, to whole contexts of {capacity.plan.context_tokens:,}"
    declared = result.declared_tokens
    of_declared = ""
    if declared:
        percent = 100 * capacity.retained_tokens / declared
        of_declared = f", {percent:.1f} % of the declared {declared:,}"
    least = "at least " if capacity.at_least else ""
    return f"{least}{amount} ({parts}){of_declared}"


def recipe_table(result: Survey) -> str:
    """Return the table that vllm-project/recipes has for a verified offloading option: a row, to be joined with others'.

    Its form is that of the pull requests 727, 754 and 893 there.
    """
    row = _recipe_row(result)
    columns = ("config", "prompt tokens", "store", "reset", "load", "identical output")
    cells = (row["config"], *(_cell(row[name]) for name in columns[1:]))
    target = result.target
    version = target.version or "(version unknown)"
    return "\n".join(
        [
            f"Served {target.model} by {target.program.title} {version}, greedy prompts, bytes:",
            "",
            f"| {' | '.join(columns)} |",
            f"|{'---|' * len(columns)}",
            f"| {' | '.join(cells)} |",
        ]
    )


def _recipe_row(result: Survey) -> dict[str, Any]:
    rise = result.target.meter.so_far
    requests = result.requests
    same = result.same
    identical = None
    if same.source == "tier" and same.state != "unknown":
        identical = same.same == same.prompts
    return {
        "config": _option(result.target.facts.connector),
        "prompt tokens": sum(_lengths(result)),
        "store": rise.store_bytes,
        "reset": requests.emptied > 0,
        "load": rise.load_bytes,
        "identical output": identical,
    }


def _option(connector: str | None) -> str:
    """Return the recipes' name of an option, the connector where they have none for it."""
    if connector is None:
        return _UNKNOWN
    if "OffloadingConnector" in connector:
        return "`offloading_fs`" if "fs" in connector.split() else "`offloading_cpu`"
    return connector or "none"


def _lengths(result: Survey) -> list[int]:
    return [window.answer.prompt_tokens for window in result.requests.cold.values()]


def _cell(value: Any) -> str:
    if value is None:
        return "not counted"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.0f}"


def _tokens(tokens: int | None) -> str:
    return _UNKNOWN if tokens is None else f"{tokens:,} tokens"


def _bytes(tokens: int, bytes_per_token: float | None) -> int | None:
    return round(tokens * bytes_per_token) if bytes_per_token else None


def _amount(tokens: int, bytes_per_token: float | None) -> str:
    size = _bytes(tokens, bytes_per_token)
    return f"{tokens:,} tokens" + (f" = {size / GIB:.3g} GiB" if size else "")


def _device_share(result: Survey) -> float | None:
    """Return the share of the device's cache that new prompts took, of one engine; None if its size is unknown."""
    device = result.target.facts.device_tokens
    requests = result.requests
    taken = sum(_lengths(result))
    for window in requests.salted.values():
        taken += window.answer.prompt_tokens
    return taken / device if device else None
