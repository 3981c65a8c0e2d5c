"""Target `check`: measures blocks until the verdict is clear, then writes the comment, the figure and verdict.json."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from kveval.analysis.estimators.sequential import Design
from kveval.campaign.config import Config
from kveval.campaign.loading import load_config
from kveval.host.files import write_json, write_text
from kveval.host.hardware import probe
from kveval.report.figures.draw import write_single_figure
from kveval.store.run_file import pointed_run
from kveval.workflow.check.campaign import (
    BLOCKS,
    INSTALLED,
    CheckError,
    CheckPlan,
    check_plan,
)
from kveval.workflow.check.comment import FIGURE, CheckResult, comment, draw_check
from kveval.workflow.check.judging import (
    FAILING,
    BuildClaim,
    Judged,
    Verdict,
    claims_of,
    design_of,
    judged,
    verdict_of,
)
from kveval.workflow.check.measuring import Places, Values, measure_block, values_of
from kveval.workflow.planning.order import campaign_pointer


def run_check(
    asked: Mapping[str, Any],
    options: Mapping[str, Any],
    files: Sequence[str],
    places: Places,
) -> tuple[bool, str]:
    """Measure until the verdict is clear; return whether the candidate passes, and the text to print.

    `asked`: the campaign's values; `files`: its files, none for the default campaign; `options`: base, candidate,
    check_arms, check_blocks of --config. Raises a Failure for what cannot be checked.
    """
    if not options.get("candidate"):
        said = "name the build: --config candidate=FOLDER (or FILE.whl, PROGRAM==VERSION), and base= unless installed"
        raise CheckError(said, code="no_candidate")
    base, candidate = str(options.get("base") or INSTALLED), str(options["candidate"])
    plan = check_plan(
        asked,
        base,
        candidate,
        arms_of(options),
        int(options.get("check_blocks") or BLOCKS),
    )
    config = planned_config(plan, places)
    claims = claims_of(config, plan.arms)
    command = command_of("check", options, files)
    checked = until_clear(
        plan, config, claims, design_of(config, claims), places, command
    )
    return checked.verdict not in FAILING, write_check(
        checked, Path(config.campaign.results)
    )


def arms_of(options: Mapping[str, Any]) -> list[str]:
    """Return the arms that --config names; a single one may be a string."""
    arms = options.get("check_arms") or ()
    return [arms] if isinstance(arms, str) else list(arms)


def planned_config(plan: CheckPlan, places: Places) -> Config:
    """Load a check's campaign. Raises CheckError for a load whose levels are searched."""
    config = load_config(plan.values, places.catalogues)
    if not config.workload.given_levels:
        raise CheckError(
            "check needs a load with given levels, not searched ones",
            code="levels_searched",
        )
    return config


def command_of(
    target: str, options: Mapping[str, Any], files: Sequence[str]
) -> list[str]:
    """Return the words of the command that repeats a target with these options."""
    given = {
        name: f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
        for name, value in options.items()
        if value
    }
    words = ["snakemake", "--cores", "4", target]
    words += ["--configfile", *files] if files else []
    return [*words, "--config", *(f"{name}={value}" for name, value in given.items())]


def until_clear(
    plan: CheckPlan,
    config: Config,
    claims: Sequence[BuildClaim],
    design: Design,
    places: Places,
    command: Sequence[str],
) -> CheckResult:
    """Measure block after block, judging after each, until there is a verdict or the budget of blocks is used up."""
    blocks: list[Values] = []
    reasons: list[str] = []
    found: list[Judged] = []
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
        found = judged(claims, blocks, design)
        verdict = verdict_of(found, block, design)
        print(f"block {block} of at most {design.budget}: {verdict}", flush=True)
        if verdict != "not enough":
            break
    minutes, software = _measured(config, len(blocks))
    machine = probe()
    return CheckResult(
        verdict,
        found,
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


def write_check(checked: CheckResult, folder: Path) -> str:
    """Write comment, figure and verdict; return the text to print."""
    folder.mkdir(parents=True, exist_ok=True)
    text = comment(checked)
    write_text(folder / "COMMENT.md", text)
    title = "Is the candidate slower than the base?"
    write_single_figure(
        title, lambda: draw_check(checked.found, checked.design), folder / FIGURE
    )
    write_json(folder / "verdict.json", _plain(checked))
    return f"{text}\nComment: {folder / 'COMMENT.md'}\nFigure: {folder / FIGURE}"


def _measured(config: Config, blocks: int) -> tuple[float, dict[str, str]]:
    """Return how many minutes the runs of these blocks took, and the versions that they had, by program."""
    pointers = [
        campaign_pointer(config, cell, run)
        for cell in config.cells
        for run in range(1, blocks + 1)
    ]
    runs = [pointed_run(pointer) for pointer in pointers if pointer.exists()]
    seconds = 0.0
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        seconds += (
            datetime.fromisoformat(run.finished) - datetime.fromisoformat(run.started)
        ).total_seconds()
        for name, version in run.software.items():
            found.setdefault(name, {})[version] = None
    return seconds / 60, {
        name: " and ".join(versions) for name, versions in found.items()
    }


def _plain(checked: CheckResult) -> dict[str, Any]:
    """Return a check as plain values, for JSON; NaN becomes null."""
    rows = [
        {
            "arm": each.claim.arm,
            "quantity": each.claim.quantity,
            "decides": each.claim.decides,
            "idle": each.idle,
            "base": each.base,
            "candidate": each.candidate,
            "usable_blocks": each.usable,
            **asdict(each.look),
            "answer": each.answer,
        }
        for each in checked.found
    ]
    known = [
        {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    return {
        "schema": 1,
        "verdict": checked.verdict,
        "claims": known,
        "design": asdict(checked.design),
        **{name: getattr(checked, name) for name in ("builds", "blocks", "identical")},
    }
