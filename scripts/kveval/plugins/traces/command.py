"""`kveval trace`: a trace of a log of requests, what is in it, and the workload that replays it."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from kveval.host.findings import pluralize
from kveval.load.log_file import number_word
from kveval.plugins.traces.conversations import Sharing
from kveval.plugins.traces.request_log import KINDS
from kveval.plugins.traces.trace_making import (
    MOST_BLOCKS,
    Lengths,
    LogSummary,
    MadeTrace,
    TextFacts,
    TraceOptions,
    make_trace,
)
from kveval.workflow.command.campaign import OptionError
from kveval.workflow.command.checkout import Checkout
from kveval.workflow.command.output import Output, print_document

_PACKED = (".gz", ".zst")
_STREAMS = 8
_LONG_S = 1800
_ASSUMED = {
    Sharing.HISTORY: "Each prompt of a session begins with the session's earlier prompt and its answer.",
    Sharing.PROMPTS: "Each prompt of a session begins with the session's earlier prompt; answers may be left out.",
    Sharing.NONE: "No prompt begins with an earlier one of its session.",
}


def named_fields(texts: Sequence[str]) -> dict[str, str]:
    """Return the fields that KIND=NAME name. Raises OptionError."""
    fields = {}
    for text in texts:
        kind, equals, name = text.partition("=")
        if kind not in KINDS or not equals or not name:
            message = f"--field {text}: write KIND=NAME, KIND one of {', '.join(KINDS)}"
            raise OptionError(message, code="no_field")
        fields[kind] = name
    return fields


def show_trace(
    source: Path, output: Path | None, options: TraceOptions, *, as_json: bool
) -> None:
    """Make a trace of a file, and print what is in it and how to use it. Raises TraceError."""
    folder = Checkout.from_folders(Path.cwd()).relative().root
    configuration = None if folder is None else folder / "config"
    name = _name(source)
    default = Path(f"{name}.trace.jsonl.gz")
    if configuration is not None:
        default = configuration / "traces" / f"{name}.jsonl.gz"
    with Output(as_json, io.StringIO()).ended_by_signals():
        made = make_trace(source, output, options, default)
    workload = _workload(made, configuration)
    if as_json:
        print_document(_document(made, workload))
        return
    width = shutil.get_terminal_size((120, 24)).columns
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    _print_summary(made, console)
    _print_notes(made, console)
    console.print("\nIn a campaign's file:\n", style="bold")
    print(workload_yaml(_name(made.file), workload), end="")
    console.print("\nNext", style="bold")
    console.print("  kveval curve CAMPAIGN", style="bold")
    console.print("      what each size of a tier would serve of it")


def _name(path: Path) -> str:
    """Return a file's name without its suffixes, as the name of a workload."""
    name = path.name
    for suffix in (*_PACKED, ".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".log"):
        name = name.removesuffix(suffix)
    name = name.removesuffix(".trace")
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-._+") or "trace"


def _workload(made: MadeTrace, configuration: Path | None) -> dict[str, Any]:
    """Return the entry of a workload that replays a trace; its file is named as a campaign reads it."""
    file = made.file.absolute()
    if configuration is not None and file.is_relative_to(configuration.absolute()):
        file = file.relative_to(configuration.absolute())
    trace = {"file": file.as_posix(), "hash_tokens": made.hash_tokens}
    # Behind the last request, which comes in the last second of the whole log.
    seconds = int(made.span_s) + 1
    load = {"profile": "trace", "levels": [100], "seconds": seconds}
    if made.span_s < 1:
        # All came at once: there is no rate that could be kept.
        load = {"profile": "trace-streams", "levels": [_STREAMS], "seconds": 60}
    return {
        "title": f"requests of {made.source.name}",
        **load,
        "trace": trace,
        "seed": 1,
    }


def workload_yaml(name: str, workload: dict[str, Any]) -> str:
    """Return the lines of a campaign's file that declare a workload and choose it."""
    values = {"workload": name, "workloads": {name: workload}}
    return yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=110)


def _document(made: MadeTrace, workload: dict[str, Any]) -> dict[str, Any]:
    document = asdict(made)
    if made.log is not None:
        facts = made.log.facts
        findings = {
            "entries": facts.entries,
            "fields": facts.fields,
            "clock": facts.clock,
            "units": sorted(facts.units),
        }
        del document["log"]["facts"]
        document["log"] = {"findings": findings, **document["log"]}
    return {
        **document,
        "source": str(made.source),
        "file": str(made.file),
        "rate_req_s": made.requests / made.span_s if made.span_s else None,
        "hit_share": made.hit_share,
        "dropped": [asdict(dropped) for dropped in made.dropped],
        "notes": list(_notes(made)),
        "workload": workload,
    }


def _print_summary(made: MadeTrace, console: Console) -> None:
    console.print(f"{made.file}", style="bold", end="")
    console.print(f": {made.state}, hash_tokens {made.hash_tokens}")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, text in _lines(made):
        table.add_row(label, text)
    console.print(Padding(table, (0, 2), expand=False))


def _lines(made: MadeTrace) -> Iterator[tuple[str, str]]:
    """Yield what is in a trace, a label and a text each."""
    yield "source", f"{made.source}, form {made.form}"
    if made.log is not None:
        yield "fields", _fields(made.log)
    yield "requests", f"{made.requests:,}"
    if made.log is not None and made.log.conversations is not None:
        yield "sessions", _sessions(made.log)
    span = f"{made.span_s:,.0f} s"
    if made.span_s:
        span += f", {made.requests / made.span_s:.3g} requests/s; longest pause {made.longest_pause_s:,.0f} s"
    yield "span", span
    yield "prompts", _lengths(made.prompts)
    yield "answers", _lengths(made.answers)
    yield (
        "longest",
        f"{made.longest:,} tokens with the answer: server.max_model_len must be as large",
    )
    yield "repeats", _repeats(made)
    for number, dropped in enumerate(made.dropped):
        first = ", ".join(f"{line:,}" for line in dropped.lines)
        more = ", ..." if dropped.count > len(dropped.lines) else ""
        word = number_word(made.source)
        yield (
            "" if number else "dropped",
            f"{dropped.count:,}: {dropped.reason} ({word} {first}{more})",
        )
    if made.log is not None and not made.dropped:
        yield "dropped", "none"


def _repeats(made: MadeTrace) -> str:
    words = f"{100 * made.hit_share:.1f} %"
    texts = None if made.log is None else made.log.texts
    if texts is not None and texts.least_share is not None:
        words += f" ({_percent_range(texts)}, as not all can be counted)"
    return f"{words} of the prompt tokens, in whole blocks of {made.hash_tokens}: the hit share of a cache of any size"


def _percent_range(texts: TextFacts) -> str:
    assert texts.least_share is not None and texts.most_share is not None
    return f"{100 * texts.least_share:.1f} to {100 * texts.most_share:.1f} %"


def _fields(log: LogSummary) -> str:
    texts = []
    for kind, names in log.facts.fields.items():
        text = f"{kind} from {' or '.join(names[:3])}"
        if kind == "time":
            text += f" ({', '.join(sorted(log.facts.units))}, {log.facts.clock})"
        texts.append(text)
    return "; ".join(texts)


def _sessions(log: LogSummary) -> str:
    assert log.conversations is not None
    sessions = "no field" if log.sessions is None else f"{log.sessions:,}"
    return f"{sessions}; {log.conversations.count:,} conversations"


def _lengths(lengths: Lengths) -> str:
    return f"{lengths.total:,} tokens; p50 {lengths.p50:,.0f}, p95 {lengths.p95:,.0f}, at most {lengths.most:,}"


def _print_notes(made: MadeTrace, console: Console) -> None:
    for number, note in enumerate(_notes(made)):
        if not number:
            console.print("\nTo know", style="bold")
        console.print(Padding(note, (0, 2), expand=False))


def _notes(made: MadeTrace) -> Iterator[str]:
    """Yield the assumptions that a trace rests on, and what may be wrong with it."""
    if made.log is not None:
        yield from _assumptions(made.log, made.hash_tokens)
        yield from _notes_on_times(made.log)
        if made.prompts.total > made.hash_tokens // 2 * MOST_BLOCKS:
            yield (
                f"Blocks are of {made.hash_tokens} tokens, so that there are no more than {MOST_BLOCKS:,}, which a campaign"
                " holds in memory. --hash-tokens chooses smaller ones, in which prompts share a little more."
            )
    if made.empty_answers:
        yield (
            f"Without an answer, as failed requests are: {pluralize(made.empty_answers, 'request')}; 1 token is requested."
        )
    if made.longest_pause_s > max(made.span_s / 2, 60):
        yield (
            f"No request comes for {made.longest_pause_s:,.0f} s of {made.span_s:,.0f} s: is a time wrong? `start_s` of"
            " the workload's trace skips a beginning."
        )
    if made.span_s > _LONG_S:
        yield (
            f"The workload replays the whole log, {made.span_s:,.0f} s for each level of a run: fewer `seconds` are its"
            " beginning, another `start_s` another part, and `kveval curve` answers for that part alone."
        )
    if made.span_s < 1:
        yield "All requests came within a second: they can be sent in order, not at a rate."


def _assumptions(log: LogSummary, hash_tokens: int) -> Iterator[str]:
    if log.sharing is Sharing.TEXT:
        assert log.texts is not None
        yield from _notes_on_texts(log.texts)
        return
    assert log.conversations is not None
    if log.sessions is None:
        yield (
            "The log has no field for sessions, so that each prompt is assumed to be new; --field session=NAME names one."
        )
    else:
        yield f"Assumed: {_ASSUMED[log.sharing]} --sharing chooses another assumption."
    whole = log.prefix_tokens // hash_tokens * hash_tokens
    if log.prefix_tokens:
        yield f"Assumed: all conversations begin with the same {whole:,} tokens, the whole blocks of {log.prefix_tokens:,}."
    else:
        yield "Assumed: different conversations share nothing; --shared-prefix-tokens N gives them a common beginning."
    if below := log.conversations.below_prefix:
        yield f"Shorter than that: the first prompt of {pluralize(below, 'conversation')}."
    shorter, much = log.conversations.shorter, log.conversations.much_shorter
    if not shorter:
        return
    yield f"Shorter than what is assumed, and taken as a new conversation: {pluralize(shorter, 'prompt')}."
    if shorter > 2 * much:
        yield (
            f"Of these, {shorter - much:,} are not shorter than the earlier prompt alone, as where clients leave reasoning"
            " out of the history: --sharing prompts continues them."
        )


def _notes_on_texts(texts: TextFacts) -> Iterator[str]:
    yield (
        "Assumed: prompts share what their texts have in common, each prompt's tokens spread over its text, of"
        f" {texts.characters_per_token:.2g} characters a token in the middle."
    )
    if texts.least_share is None:
        return
    yield (
        f"Not to be counted: parts of {pluralize(texts.unclear, 'prompt')}, such as images, or text that is not as long as"
        f" its tokens say. By what they are, {_percent_range(texts)} of the prompt tokens"
        " repeat; the trace takes the tokens that the text leaves over for theirs."
    )


def _notes_on_times(log: LogSummary) -> Iterator[str]:
    if log.facts.clock == "without a zone":
        yield "The times name no zone; they are taken as UTC, which only matters where clocks were set meanwhile."
    if log.facts.clock == "relative":
        unit = " or ".join(sorted(log.facts.units))
        yield f"The times are numbers from a start of the log's own, taken as {unit}; --time-unit says otherwise."
