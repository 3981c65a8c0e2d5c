"""Target `check`: blocks until the verdict is clear, then the comment, the figure, and the verdict as JSON."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kveval.host.files import write_json, write_text
from kveval.host.hardware import probe
from kveval.spec.config import Config
from kveval.spec.loading import load_config
from kveval.store.run_file import pointed_run
from kveval.workflow.check.campaign import CheckError, CheckPlan, check_plan
from kveval.workflow.check.comment import FIGURE, CheckFacts, comment, write_figure
from kveval.workflow.check.judging import Judged, Verdict, claims_of, design_of, judged, verdict_of
from kveval.workflow.check.measuring import Values, measure_block, values_of
from kveval.workflow.planning.order import campaign_pointer

FAILING: frozenset[Verdict] = frozenset({"regression"})
"""Verdicts with which the target fails."""
Measure = Callable[[int], Mapping[str, str]]


def run_check(
    asked: Mapping[str, Any], options: Mapping[str, Any], *, script: Path, catalogues: Path, store: Path, server: Path
) -> tuple[Verdict, Iterator[str]]:
    """Measure until the verdict is clear; return it, and the lines to be told.

    `asked`: the campaign's values; `options`: base, candidate, check_arms, check_blocks of --config. Raises a Failure
    for what cannot be checked.
    """
    if not options.get("candidate"):
        said = "give the build: --config candidate=FOLDER (or FILE.whl, PROGRAM==VERSION), and base= unless installed"
        raise CheckError(said, code="no_candidate")
    base, candidate = str(options.get("base") or "installed"), str(options["candidate"])
    arms = options.get("check_arms") or ()
    blocks = int(options.get("check_blocks") or 6)
    plan = check_plan(asked, base, candidate, [arms] if isinstance(arms, str) else list(arms), blocks)
    config = load_config(plan.values, catalogues)
    if not config.workload.fixed_levels:
        raise CheckError("check needs a load with given levels, not searched ones", code="levels_searched")
    given = {
        name: f"[{','.join(value)}]" if isinstance(value, list) else value for name, value in options.items() if value
    }
    words = ["snakemake", "--cores", "4", "check", "--config", *(f"{name}={value}" for name, value in given.items())]

    def measure(block: int) -> Mapping[str, str]:
        return measure_block(
            config, plan.values, block, script=script, catalogues=catalogues, store=store, server=server
        )

    return until_clear(plan, config, measure, words)


def until_clear(
    plan: CheckPlan, config: Config, measure: Measure, command: Sequence[str]
) -> tuple[Verdict, Iterator[str]]:
    """Measure block after block, looking after each; write what was found into the campaign's results."""
    begin, claims = time.monotonic(), claims_of(config, plan.arms)
    design = design_of(config, claims)
    blocks: list[Values] = []
    reasons: list[str] = []
    found: list[Judged] = []
    verdict: Verdict = "not enough"
    for block in range(1, design.budget + 1):
        failed = measure(block)
        reasons += [f"{cell}: {why}" for cell, why in failed.items()]
        values: Values = {}
        for cell in config.cells:
            own, why_not = values_of(config, cell, block)
            values |= own
            reasons += why_not
        blocks.append(values)
        found = judged(claims, blocks, design)
        verdict = verdict_of(found)
        print(f"block {block} of at most {design.budget}: {verdict}", flush=True)
        if verdict != "not enough":
            break
    facts = CheckFacts(
        plan.described,
        plan.identical,
        len(blocks),
        (time.monotonic() - begin) / 60,
        _host(),
        _software(config, len(blocks)),
        reasons,
        command,
    )
    folder = Path(config.campaign.results)
    folder.mkdir(parents=True, exist_ok=True)
    text = comment(verdict, found, design, facts)
    write_text(folder / "COMMENT.md", text)
    write_figure(folder / FIGURE, found, design, "Is the candidate slower than the base?")
    write_json(folder / "verdict.json", _plain(verdict, found, design, facts))
    return verdict, iter([text, f"Comment: {folder / 'COMMENT.md'}", f"Figure: {folder / FIGURE}"])


def _host() -> str:
    found = probe()
    return f"{found.get('cpu_model', 'unknown processor')}, {found.get('cpus', '?')} CPUs"


def _software(config: Config, blocks: int) -> dict[str, str]:
    pointers = [campaign_pointer(config, cell, run) for cell in config.cells for run in range(1, blocks + 1)]
    found: dict[str, dict[str, None]] = {}
    for pointer in filter(Path.exists, pointers):
        for name, version in pointed_run(pointer).software.items():
            found.setdefault(name, {})[version] = None
    return {name: " and ".join(versions) for name, versions in found.items()}


def _plain(verdict: Verdict, found: Sequence[Judged], design: Any, facts: CheckFacts) -> dict[str, Any]:
    """Return the verdict as plain values; what is not known is null."""
    rows = [
        {
            "arm": each.claim.arm,
            "quantity": each.claim.quantity,
            "decides": each.claim.decides,
            "base": each.base,
            "candidate": each.candidate,
            **asdict(each.look),
        }
        for each in found
    ]
    known = [
        {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
        for row in rows
    ]
    return {
        "schema": 1,
        "verdict": verdict,
        "claims": known,
        "design": asdict(design),
        "builds": facts.builds,
        "blocks": facts.blocks,
        "identical": facts.identical,
    }
