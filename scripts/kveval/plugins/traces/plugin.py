"""The command `kveval trace`."""
# ruff: noqa: PLC0415

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kveval.workflow.command.options import CAMPAIGNS, Json
from kveval.workflow.plugin import Plugin


class TimeUnit(StrEnum):
    """Units of times: those of kveval.plugins.traces.request_log."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


class PromptSharing(StrEnum):
    """Assumptions of what prompts begin with: kveval.plugins.traces.conversations.Sharing."""

    TEXT = "text"
    HISTORY = "history"
    PROMPTS = "prompts"
    NONE = "none"


class TraceForm(StrEnum):
    """Forms of files with requests: those of kveval.plugins.traces.trace_making."""

    LOG = "log"
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    HARVARD = "harvard"
    WEKA = "weka"


def _add_commands(app: typer.Typer) -> None:
    app.command(rich_help_panel=CAMPAIGNS)(trace)


def trace(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A log of requests (JSON lines, a JSON list or CSV) or a trace; plain, .gz or .zst.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The trace's file, compressed if it ends in .gz or .zst; by default FILE's name in config/traces/"
            " of the checkout, or here without one.",
        ),
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="KIND=NAME",
            help="The log's field for time, session, prompt or answer (their tokens), request (its id) or text, where it"
            " is not recognised; a.b is field b in a. May be repeated.",
        ),
    ] = None,
    time_unit: Annotated[
        TimeUnit | None,
        typer.Option(
            help="Unit of times that are numbers; by default by name and size."
        ),
    ] = None,
    sharing: Annotated[
        PromptSharing | None,
        typer.Option(
            help="What prompts begin with: what their text has in common; the earlier prompt and answer of their session"
            " (history), or its prompt alone (prompts); nothing of it. By default text where there is text, else history."
        ),
    ] = None,
    shared_prefix_tokens: Annotated[
        int,
        typer.Option(
            min=0,
            help="Tokens with which all conversations begin, such as a system prompt's.",
        ),
    ] = 0,
    hash_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a block of the trace; by default 32, or those of the form.",
        ),
    ] = None,
    form: Annotated[
        TraceForm | None,
        typer.Option(help="The file's form, where it is not recognised."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a trace of a log of requests, which a campaign can replay; say what is in it."""
    from kveval.plugins.traces.command import named_fields, show_trace
    from kveval.plugins.traces.conversations import Sharing
    from kveval.plugins.traces.trace_making import TraceOptions

    options = TraceOptions(
        form=form.value if form else "",
        hash_tokens=hash_tokens,
        sharing=Sharing(sharing.value) if sharing else None,
        prefix_tokens=shared_prefix_tokens,
        fields=named_fields(fields or ()),
        time_unit=time_unit.value if time_unit else "",
    )
    show_trace(file, out, options, as_json=as_json)


PLUGIN = Plugin("traces", _add_commands)
