"""The command `kveval attach`."""
# ruff: noqa: PLC0415

from __future__ import annotations

from typing import Annotated

import typer

from kveval.workflow.command.options import RUNNING, Json
from kveval.workflow.plugin import Plugin


def _add_commands(app: typer.Typer) -> None:
    app.command(rich_help_panel=RUNNING)(attach)


def attach(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Where the server answers, in OpenAI's form: http://HOST:PORT, with or without /v1.",
        ),
    ],
    model: Annotated[
        str, typer.Option(help="The model to ask for; by default the server's first.")
    ] = "",
    key_env: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The environment variable that has the API key; the key itself appears nowhere.",
        ),
    ] = "",
    metrics: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Where the server's metrics are, if not at the same address, as behind a gateway.",
        ),
    ] = "",
    share: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=100.0,
            help="Percent of the device's cache that the three prefixes may take together.",
        ),
    ] = 2.0,
    reset: Annotated[
        bool | None,
        typer.Option(
            "--reset/--no-reset",
            help="Empty the device's cache, without which a tier is not asked; by default only if nobody else is seen.",
            show_default=False,
        ),
    ] = None,
    capacity: Annotated[
        bool,
        typer.Option(
            "--capacity",
            help="Find out how much the caches retain; says before what it evicts and how long it takes, and asks.",
        ),
    ] = False,
    capacity_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="Tokens that --capacity sends; by default 1.25 times what the server declares.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Agree to what --capacity does.")
    ] = False,
    recipe: Annotated[
        bool,
        typer.Option(
            "--recipe",
            help="Print the table that vllm-project/recipes has for a verified offloading option.",
        ),
    ] = False,
    max_requests: Annotated[
        int, typer.Option(min=2, help="Requests for tokens, at most.")
    ] = 200,
    max_ttft: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Stop at a first token that is later than this.",
        ),
    ] = 10.0,
    as_json: Json = False,
) -> None:
    """Ask a server that runs already: what it is, what a prefix costs computed and cached, whether its tier serves."""
    from kveval.plugins.attach.client import Limits
    from kveval.plugins.attach.command import show_attached
    from kveval.plugins.attach.survey import Options

    show_attached(
        url,
        Options(model, share / 100, reset, capacity, capacity_tokens),
        Limits(max_requests, max_ttft),
        metrics_url=metrics,
        key_variable=key_env,
        agrees=yes,
        as_recipe=recipe,
        as_json=as_json,
    )


PLUGIN = Plugin("attach", _add_commands)
