"""`kveval check`: whether a build is slower than another, measured until it is clear."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kveval.campaign.builds import BuildError
from kveval.plugins.builds.campaign import CANDIDATE, INSTALLED
from kveval.plugins.builds.check import (
    CheckRequest,
    check_document,
    check_text,
    check_words,
    run_check,
)
from kveval.plugins.builds.judging import Verdict
from kveval.plugins.builds.measuring import Places
from kveval.workflow.command.campaign import STORE, CampaignContext
from kveval.workflow.command.exits import CANNOT_ANSWER, NO, UNDECIDED, YES, Ended
from kveval.workflow.command.output import Output

_STATUS: Mapping[Verdict, int] = {
    "improvement": YES,
    "no difference that matters": YES,
    "regression": NO,
    "not enough": UNDECIDED,
    "candidate fails": UNDECIDED,
    # Not even the base could be measured: the machine is at fault, not the candidate.
    "nothing measured": CANNOT_ANSWER,
}
_NOT_BUILT = ("no_wheel_there", "no_environment_there", "no_answer", "no_server")
"""Codes of a BuildError: a wheel that is not there, an environment that is not complete."""


def check_build(
    context: CampaignContext, request: CheckRequest, *, as_json: bool
) -> None:
    """Measure until it is clear whether the candidate is slower; ends with the status of the verdict."""
    log = context.logs / "check.log"
    request = replace(
        request,
        candidate=_located(request.candidate, context.start),
        base=_located(request.base, context.start),
    )
    with Output.to(log, as_json=as_json) as output, output.ended_by_signals():
        try:
            result, folder = run_check(
                context.values,
                request,
                _places(context),
                check_words(context.words, request),
                output.progress,
            )
        except BuildError as error:
            if error.code in _NOT_BUILT and error.facts.get("side") == CANDIDATE:
                output.progress(f"The candidate is not built: {error}")
                raise Ended(UNDECIDED) from None
            raise
        output.line(check_text(result, folder))
        output.document({"folder": str(folder), **check_document(result)})
    raise Ended(_STATUS[result.verdict])


def _located(build: str, start: Path) -> str:
    """Return a build as named from the working directory; `start`: the folder that its path is relative to."""
    if build in ("", INSTALLED) or "==" in build or start == Path.cwd():
        return build
    path, at, commit = build.rpartition("@")
    if not at or (start / build).exists():
        path, at, commit = build, "", ""
    return f"{os.path.relpath(start / Path(path).expanduser())}{at}{commit}"


def _places(context: CampaignContext) -> Places:
    return Places(
        script=context.checkout.benchmark_script,
        catalogues=context.checkout.catalogues,
        store=STORE,
        server=context.checkout.server_environment,
    )
