"""The profiles agree with each other and with the rules; nothing runs."""

import re

import pytest
import yaml
from tests.support.paths import REPOSITORY, rule_files

from kveval.workflow.directives import per_run_resource

PROFILES = {
    path.parent.name: yaml.safe_load(path.read_text())
    for path in REPOSITORY.glob("profiles/*/config.yaml")
}
RULES = "\n".join(path.read_text() for path in rule_files())


@pytest.mark.parametrize("name", sorted(PROFILES.keys() - {"default"}))
def test_the_default_profile_overrides_nothing_of_another(name):
    """With --profile its keys win, with --workflow-profile it is not read: both come to the same."""
    default, profile = PROFILES["default"], PROFILES[name]
    assert {key: profile.get(key) for key in default} == default


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_profile_names_rules_that_exist(name):
    named = [entry.partition("=")[0] for entry in PROFILES[name].get("groups", [])]
    named += [
        entry.partition("=")[0].partition(":")[0]
        for entry in PROFILES[name].get("set-resources", [])
    ]
    assert [rule for rule in named if f"rule {rule}:" not in RULES] == []


def test_only_one_profile_sends_measurements_away():
    """A rule that a profile gives resources is a job of the cluster's; see rules/benchmark.smk."""
    sending = [
        name
        for name, profile in PROFILES.items()
        if any(
            entry.startswith("benchmark:") for entry in profile.get("set-resources", [])
        )
    ]
    assert sending == ["slurm-gpu"]


def rules_of_a_cluster() -> list[tuple[str, str]]:
    """The name and the text of every rule that is no local one."""
    blocks = re.split(r"^(?= *(?:use )?rule\b.*:$)", RULES, flags=re.MULTILINE)[1:]
    named = [
        (re.search(r"rule (\w+):|name:\s+f?\"(\w+)", block), block) for block in blocks
    ]
    return [
        (match[1] or match[2], block)
        for match, block in named
        if match and "localrule:" not in block
    ]


def test_every_job_of_a_cluster_says_what_it_needs():
    found = rules_of_a_cluster()
    assert {"extract_peak", "import_run", "plot_", "write_report"} <= {
        name for name, _ in found
    }
    assert [
        name
        for name, block in found
        if "mem_mb=" not in block or "runtime=" not in block
    ] == []


def test_rules_with_a_job_per_run_or_cell_ask_for_constants():
    """Snakemake asks a function once for every job that it plans."""
    many = [
        block
        for _, block in rules_of_a_cluster()
        if "CELL}" in block.partition("log:")[0]
    ]
    assert len(many) == 4
    assert [
        block
        for block in many
        if not re.search(r"mem_mb=\d+,\s+(#.*\s+)?runtime=\d+", block)
    ] == []


def test_a_job_of_a_large_campaign_asks_for_more_and_a_retry_for_more_again():
    asked = {runs: per_run_resource(300, 0.1, runs) for runs in (9, 3000)}
    assert [asked[runs](None, attempt=1) for runs in asked] == [301, 600]
    assert [asked[3000](None, attempt=attempt) for attempt in (1, 2, 3)] == [
        600,
        1200,
        1800,
    ]


@pytest.mark.parametrize(
    "name", sorted(name for name, profile in PROFILES.items() if "groups" in profile)
)
def test_no_job_of_a_profile_has_more_threads_than_it_lets_a_group_have(name):
    """Snakemake cuts the threads of any job down to `cores`."""
    threads = [
        int(entry.partition("=")[2]) for entry in PROFILES[name].get("set-threads", [])
    ]
    assert all(count <= PROFILES[name]["cores"] for count in [1, *threads])


def test_campaigns_on_a_cluster_may_send_their_analysis_away():
    """Where both are given, the workflow's profile wins key by key: it must say nothing of where the analysis runs."""
    both = PROFILES["kubernetes"].keys() & PROFILES["kubernetes-executor"].keys()
    assert both == {*PROFILES["default"], "cores"}
