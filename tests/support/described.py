"""Runs with their conditions, as the analysis reads them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from kveval.conditions.facts import conditions_of, described
from kveval.store.conditions import RunConditions, write_conditions
from kveval.store.run_file import (
    Run,
    collect_runs,
    pointed_run,
    read_run,
    renamed,
    stored_run,
)
from kveval.tables.levels import rows


def run_tables(
    directory: Path,
    required: Sequence[Mapping[str, Any]] | None = None,
    scenario: str | None = None,
    limits: Mapping[str, Any] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the levels and the requests of a run in a folder; `scenario`: name for its scenario, its own if None."""
    run = described(renamed(read_run(directory), scenario))
    return rows.run_tables(run, directory, required, limits)


def raw_run(run: Run) -> Run:
    """Return a run without its conditions, as run.json has it."""
    levels = [msgspec.structs.replace(level, terms=None) for level in run.levels]
    return msgspec.structs.replace(run, conditions=None, levels=levels)


def described_run(description: Mapping[str, Any]) -> Run:
    """Return a run by the content of its run.json."""
    return described(msgspec.convert(description, Run))


def described_runs(descriptions: Sequence[Mapping[str, Any]]) -> list[Run]:
    """Return runs by the content of their run.json."""
    return [*map(described_run, descriptions)]


def vllm(version: str) -> RunConditions:
    """Return the conditions of a run of which nothing is known but the version of vLLM."""
    facts = dict.fromkeys(
        ("measurement", "engine", "weights", "started", "finished"), ""
    )
    cell = {"model": "m", "scenario": "s", "cpu_blocks": 0}
    content = {**facts, "schema": 1, "run": 1, "cell": cell, "specification": {}}
    versions = {"vllm": version}
    return described_run({**content, "levels": [], "versions": versions}).described


def collect_described(pointers: Sequence[Path], output: Path) -> None:
    """Collect the runs that measurement.json point to, with conditions.json that is made beside each."""
    paths = [
        pointer.with_name(f"{pointer.stem}-conditions.json") for pointer in pointers
    ]
    for pointer, path in zip(pointers, paths, strict=True):
        if stored_run(pointer).joinpath("run.json").exists():
            write_conditions(conditions_of(pointed_run(pointer)), path)
    collect_runs(pointers, paths, output)
