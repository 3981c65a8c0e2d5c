"""The examples of reports: complete, small, of campaigns as they are; and the script that makes them."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from tests.support.paths import REPOSITORY

SPEC = importlib.util.spec_from_file_location(
    "make_examples", REPOSITORY / "docs" / "make_examples.py"
)
assert SPEC is not None
assert SPEC.loader is not None
make_examples = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_examples)

MADE = sorted(make_examples.EXAMPLES.glob("*/made-by.json"))


@pytest.mark.parametrize("origin", MADE, ids=lambda origin: origin.parent.name)
def test_an_example_is_complete_and_of_its_campaign_as_it_is(origin: Path) -> None:
    made = json.loads(origin.read_text())
    campaign = REPOSITORY / made["campaign"]
    assert make_examples.digest(campaign) == made["campaign_digest"]
    assert make_examples.command(campaign) == made["command"]
    report = json.loads((origin.parent / "report.json").read_text())
    assert make_examples.campaign_file(report["campaign"]["name"]) == campaign
    assert ", ".join(report["software"]["kveval"]) == made["kveval"]
    assert (
        sum(file.stat().st_size for file in origin.parent.rglob("*"))
        < make_examples.MOST_BYTES
    )


@pytest.mark.parametrize(
    ("campaign", "command"),
    [
        ("config/config.yaml", "bash scripts/run.sh"),
        (
            "config/campaigns/smoke.yaml",
            "bash scripts/run.sh report --configfile config/campaigns/smoke.yaml",
        ),
        (
            "config/campaigns/gpu-first.yaml",
            "snakemake --cores 4 report --configfile config/campaigns/gpu-first.yaml",
        ),
    ],
)
def test_the_command_sets_a_server_for_cpus_up_only_where_one_is_measured(
    campaign: str, command: str
) -> None:
    assert make_examples.command(REPOSITORY / campaign) == command


def test_the_list_of_examples_and_the_picture_are_there() -> None:
    assert MADE
    assert (make_examples.EXAMPLES / "README.md").read_text() == make_examples.page(
        make_examples.EXAMPLES
    )
    picture = (make_examples.EXAMPLES / make_examples.PICTURE).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < make_examples.MOST_BYTES
    shown = f"docs/examples/{make_examples.PICTURE}"
    assert shown in (REPOSITORY / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder of results: an example's."""
    folder = tmp_path / "results"
    shutil.copytree(MADE[0].parent, folder)
    return folder


def test_a_report_is_copied_with_what_made_it(results: Path, tmp_path: Path) -> None:
    made = make_examples.make(results, tmp_path / "examples")
    assert (made / "report.json").read_bytes() == (results / "report.json").read_bytes()
    assert {file.name for file in made.iterdir()} == {
        "REPORT.md",
        "report.html",
        "report.json",
        "made-by.json",
        "appendix",
        "figures",
    }
    assert (
        f"({made.name}/REPORT.md)" in (tmp_path / "examples" / "README.md").read_text()
    )


def test_without_a_browser_the_picture_is_the_first_figure(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    make_examples.take_picture(results, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes() in [
        file.read_bytes() for file in results.glob("figures/*/*.png")
    ]


@pytest.mark.parametrize("lacking", ["REPORT.md", "report.json", "report.html"])
def test_an_unfinished_campaign_is_refused(
    results: Path, tmp_path: Path, lacking: str
) -> None:
    (results / lacking).unlink()
    with pytest.raises(ValueError, match=lacking):
        make_examples.make(results, tmp_path / "examples")


def test_a_campaign_that_nobody_can_repeat_is_refused(
    results: Path, tmp_path: Path
) -> None:
    report = json.loads((results / "report.json").read_text())
    report["campaign"]["name"] = "of-somebody"
    (results / "report.json").write_text(json.dumps(report))
    with pytest.raises(ValueError, match="of-somebody"):
        make_examples.make(results, tmp_path / "examples")


def test_a_report_too_large_for_the_repository_is_refused(
    results: Path, tmp_path: Path
) -> None:
    (results / "figures" / "arms" / "large.png").write_bytes(
        bytes(make_examples.MOST_BYTES)
    )
    with pytest.raises(ValueError, match="at most"):
        make_examples.make(results, tmp_path / "examples")
