"""The profiles agree with each other and with the rules; nothing runs."""

from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
PROFILES = {path.parent.name: yaml.safe_load(path.read_text()) for path in REPOSITORY.glob("profiles/*/config.yaml")}
RULES = "\n".join(path.read_text() for path in (REPOSITORY / "rules").glob("*.smk"))


@pytest.mark.parametrize("name", sorted(PROFILES.keys() - {"default"}))
def test_the_default_profile_overrides_nothing_of_another(name):
    """With --profile its keys win, with --workflow-profile it is not read: both come to the same."""
    default, profile = PROFILES["default"], PROFILES[name]
    assert {key: profile.get(key) for key in default} == default


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_profile_names_rules_that_exist(name):
    named = [entry.partition("=")[0] for entry in PROFILES[name].get("groups", [])]
    named += [entry.partition("=")[0].partition(":")[0] for entry in PROFILES[name].get("set-resources", [])]
    assert [rule for rule in named if f"\nrule {rule}:" not in RULES] == []


def test_only_one_profile_sends_measurements_away():
    """A rule that a profile gives resources is a job of the cluster's; see rules/benchmark.smk."""
    sending = [
        name
        for name, profile in PROFILES.items()
        if any(entry.startswith("benchmark:") for entry in profile.get("set-resources", []))
    ]
    assert sending == ["slurm-gpu"]
