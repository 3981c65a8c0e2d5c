"""The bare workflow that planning is timed by has the rules and the jobs of the real one."""

from pathlib import Path

import pytest
from tests.support.loaded import snakemake
from tests.support.planning import job_counts, make_campaign, make_toy, rule_names

pytestmark = pytest.mark.workflow


def test_the_toy_has_the_workflows_rules_and_jobs(tmp_path: Path) -> None:
    campaign, toy = tmp_path / "campaign", tmp_path / "toy"
    make_campaign(campaign, 100, 2)
    make_toy(toy, 100, 2)
    counts = job_counts(snakemake(campaign, "-n", "report"))
    assert counts["benchmark"] == 200
    assert counts == job_counts(snakemake(toy, "-n", "report"))
    assert rule_names(snakemake(campaign, "--list-rules")) == rule_names(
        snakemake(toy, "--list-rules")
    )
