"""`kveval check`: measures blocks until the verdict is clear, then writes the comment, the figure and verdict.json."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kveval.configuration.config import Config
from kveval.configuration.loading import load_config
from kveval.host.files import write_json, write_text
from kveval.host.hardware import probe
from kveval.plugins.builds.campaign import (
    BLOCKS,
    INSTALLED,
    CheckError,
    CheckPlan,
    check_plan,
)
from kveval.plugins.builds.comment import FIGURE, CheckResult, comment, draw_check
from kveval.plugins.builds.judging import (
    Evaluation,
    Verdict,
    claims_of,
    design_of,
    evaluate_claims,
    verdict_of,
)
from kveval.plugins.builds.measuring import Places, Values, measure_block, values_of
from kveval.report.figures.draw import write_single_figure
from kveval.store.run_file import pointed_run
from kveval.workflow.planning.order import campaign_pointer

COMMENT = "COMMENT.md"


@dataclass(frozen=True)
class CheckRequest:
    """A check as it was asked for: the two builds, the arms as SCENARIO/CPU_BLOCKS, and the most blocks.

    Without arms it is of those that `check_plan` takes by default.
    """

    candidate: str
    base: str = INSTALLED
    arms: Sequence[str] = ()
    blocks: int = BLOCKS


def run_check(
    values: Mapping[str, Any],
    request: CheckRequest,
    places: Places,
    command: Sequence[str],
    say: Callable[[str], None],
) -> tuple[CheckResult, Path]:
    """Measure until the verdict is clear; return what was found, and the folder of comment, figure and verdict.

    `values`: the campaign's; `command`: the words that repeat the check; `say` gets a line after each block. Raises a
    Failure for what cannot be checked.
    """
    plan = check_plan(
        values, request.base, request.candidate, request.arms, request.blocks
    )
    config = load_config(plan.values, places.catalogues)
    if not config.workload.given_levels:
        raise CheckError(
            "check needs a load with given levels, not searched ones",
            code="levels_searched",
        )
    result = until_clear(plan, config, places, command, say)
    folder = Path(config.campaign.results)
    write_check(result, folder)
    return result, folder


def check_words(campaign: Sequence[str], request: CheckRequest) -> list[str]:
    """Return the command that repeats a check; `campaign`: the words that name its campaign."""
    words = ["kveval", "check", *campaign]
    if request.base != INSTALLED:
        words += ["--base", request.base]
    words += ["--candidate", request.candidate]
    for arm in request.arms:
        words += ["--arm", arm]
    if request.blocks != BLOCKS:
        words += ["--blocks", str(request.blocks)]
    return words


def until_clear(
    plan: CheckPlan,
    config: Config,
    places: Places,
    command: Sequence[str],
    say: Callable[[str], None],
) -> CheckResult:
    """Measure block after block, judging after each, until there is a verdict or the budget of blocks is used up."""
    claims = claims_of(config, plan.cells)
    design = design_of(config, claims)
    blocks: list[Values] = []
    reasons: list[str] = []
    evaluations: list[Evaluation] = []
    verdict: Verdict = "not enough"
    for block in range(1, design.budget + 1):
        failed = measure_block(config, plan.values, block, places)
        reasons += [f"{cell}: {why}" for cell, why in failed.items()]
        values: Values = {}
        for cell in config.cells:
            own, why_not = values_of(config, cell, block)
            values |= own
            reasons += why_not
        blocks.append(values)
        evaluations = evaluate_claims(claims, blocks, design)
        verdict = verdict_of(evaluations, block, design)
        say(f"block {block} of at most {design.budget}: {verdict}")
        if verdict != "not enough":
            break
    minutes, software = _measured(config, len(blocks))
    machine = probe()
    return CheckResult(
        verdict,
        evaluations,
        design,
        builds=plan.described,
        identical=plan.identical,
        blocks=len(blocks),
        minutes=minutes,
        host=f"{machine.get('cpu_model', 'unknown processor')}, {machine.get('cpus', '?')} CPUs",
        software=software,
        failed=list(dict.fromkeys(reasons)),
        command=command,
    )


def check_text(checked: CheckResult, folder: Path) -> str:
    """Return what is printed of a check whose files are in `folder`."""
    text = comment(checked)
    return f"{text}\nComment: {folder / COMMENT}\nFigure: {folder / FIGURE}"


def write_check(checked: CheckResult, folder: Path) -> None:
    """Write comment, figure and verdict."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / COMMENT, comment(checked))
    title = "Is the candidate slower than the base?"
    write_single_figure(
        title, lambda: draw_check(checked.evaluations, checked.design), folder / FIGURE
    )
    write_json(folder / "verdict.json", check_document(checked))


def _measured(config: Config, blocks: int) -> tuple[float, dict[str, str]]:
    """Return how many minutes the runs of these blocks took, and the versions that they had, by program."""
    pointers = [
        campaign_pointer(config, cell, run)
        for cell in config.cells
        for run in range(1, blocks + 1)
    ]
    runs = [pointed_run(pointer) for pointer in pointers if pointer.exists()]
    seconds = 0.0
    versions_of: dict[str, dict[str, None]] = {}
    for run in runs:
        seconds += (
            datetime.fromisoformat(run.finished) - datetime.fromisoformat(run.started)
        ).total_seconds()
        for name, version in run.software.items():
            versions_of.setdefault(name, {})[version] = None
    return seconds / 60, {
        name: " and ".join(versions) for name, versions in versions_of.items()
    }


def check_document(checked: CheckResult) -> dict[str, Any]:
    """Return a check as plain values, for JSON; NaN becomes null."""
    rows = [
        {
            "arm": evaluation.claim.arm,
            "quantity": evaluation.claim.quantity,
            "decides": evaluation.claim.decides,
            "idle": evaluation.idle,
            "base": evaluation.base,
            "candidate": evaluation.candidate,
            "usable_blocks": evaluation.usable,
            **asdict(evaluation.look),
            "answer": evaluation.answer,
        }
        for evaluation in checked.evaluations
    ]
    known = [_without_nan(row) for row in rows]
    return {
        "schema": 1,
        "verdict": checked.verdict,
        "claims": known,
        "design": asdict(checked.design),
        **{name: getattr(checked, name) for name in ("builds", "blocks", "identical")},
    }


def _without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    known = dict(row)
    for name, value in row.items():
        if isinstance(value, float) and math.isnan(value):
            known[name] = None
    return known
