"""What a user mistypes on the command line or in a file: a line that says what is wrong, and no traceback."""

from pathlib import Path

import pytest
from tests.support.command import kveval
from tests.support.loaded import run_snakemake
from tests.support.tree import workflow_copy

pytestmark = pytest.mark.workflow
BY_SNAKEMAKE = "Snakemake reads its --configfile before any file of this workflow, and says it in its own way"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workflow_copy(tmp_path_factory.mktemp("mistyped") / "repository")


def refusal(folder: Path, *arguments: str) -> str:
    """The last lines of a snakemake that refuses to start."""
    code, output = run_snakemake(folder, "-n", *arguments)
    assert code != 0
    assert "Traceback" not in output
    assert 'File "' not in output
    return output.rstrip().splitlines()[-1]


# What is said of other targets: tests/unit/workflow/test_console.py. Here is one of each way on which Snakemake asks.
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("reprot", "There is no target reprot: did you mean report"),
        (
            "results/Qwen3-0.6B/no-ofload/0/peak.csv",
            "Nothing makes results/Qwen3-0.6B/no-ofload/0/peak.csv: there is no scenario no-ofload; did you mean no-",
        ),
        (
            "results/Qwen3-0.6B/native-offload/0/peak.csv",
            "cell Qwen3-0.6B/native-offload/0: cpu_blocks: native-offload has a CPU tier, and 0 blocks give it no size",
        ),
    ],
)
def test_a_mistyped_target_is_named_with_what_is_nearest(
    folder: Path, target: str, said: str
) -> None:
    assert refusal(folder, target).strip().startswith(said)


@pytest.mark.xfail(strict=True, reason=BY_SNAKEMAKE)
def test_a_tab_in_a_campaign_is_named_with_file_and_line(folder: Path) -> None:
    (folder / "tab.yaml").write_text('name: tabbed\nserver:\n\tvllm: "0.32.0"\n')
    said = refusal(folder, "report", "--configfile", "tab.yaml")
    assert "tab.yaml" in said
    assert "line 3" in said


@pytest.mark.xfail(strict=True, reason=BY_SNAKEMAKE)
def test_a_mistyped_campaign_is_named(folder: Path) -> None:
    assert "config/campaigns/smokee.yaml" in refusal(
        folder, "report", "--configfile", "config/campaigns/smokee.yaml"
    )


@pytest.mark.xfail(strict=True, reason=BY_SNAKEMAKE)
def test_a_target_after_the_campaign_is_no_campaign(folder: Path) -> None:
    said = refusal(folder, "--configfile", "config/campaigns/smoke.yaml", "report")
    assert "report" in said
    assert "before --configfile" in said


def test_a_command_names_a_mistyped_campaign_a_tab_and_what_is_too_much(
    folder: Path,
) -> None:
    (folder / "tab.yaml").write_text('name: tabbed\nserver:\n\tvllm: "0.32.0"\n')
    for words, named in {
        ("tab.yaml",): ("tab.yaml", "line 3"),
        ("config/campaigns/smokee.yaml",): ("config/campaigns/smokee.yaml",),
        ("config/campaigns/smoke.yaml", "report"): ("report",),
    }.items():
        code, output = kveval(folder, "plan", *words)
        assert code == 2
        assert all(name in output for name in named), output
        assert "Traceback" not in output
