"""Every plug-in of ours is listed, and those of other distributions are found by their entry points."""

from pathlib import Path

import pytest
from tests.support.paths import SCRIPTS

from kveval.workflow import plugin
from kveval.workflow.plugin import OURS, Plugin, installed, rule_files


def test_every_folder_of_a_plug_in_is_listed() -> None:
    folders = {path.parent.name for path in (SCRIPTS / "kveval").glob("plugins/*/*.py")}
    assert folders == set(OURS)
    assert [plugin.name for plugin in installed()][: len(OURS)] == [*OURS]


def test_rules_of_others_are_left_out_where_jobs_share_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = Plugin("other", rules=Path("other.smk"))
    monkeypatch.setattr(plugin, "installed", lambda: (*plugin.ours(), other))
    assert rule_files(shared_folder=True) == [
        *rule_files(shared_folder=False),
        other.rules,
    ]
