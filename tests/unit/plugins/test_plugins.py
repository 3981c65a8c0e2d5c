"""Every plug-in of ours is listed, and those of other distributions are found by their entry points."""

from tests.support.paths import SCRIPTS

from kveval.workflow.plugin import OURS, installed


def test_every_folder_of_a_plug_in_is_listed() -> None:
    folders = {path.parent.name for path in (SCRIPTS / "kveval").glob("plugins/*/*.py")}
    assert folders == set(OURS)
    assert [plugin.name for plugin in installed()][: len(OURS)] == [*OURS]
