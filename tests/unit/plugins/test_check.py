"""A check: the campaign that it makes, when it stops, what it says; the measuring itself is replaced."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.config_files import CONFIG, RAW
from tests.support.source_trees import CONNECTOR, source_tree
from tests.support.synthetic import level_row, levels_table

from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.configuration.loading import load_config
from kveval.plugins.builds import check, measuring
from kveval.plugins.builds.campaign import (
    ARMS,
    BLOCKS,
    CheckError,
    CheckPlan,
    check_plan,
    source_of,
)
from kveval.plugins.builds.check import (
    CheckRequest,
    check_words,
    until_clear,
    write_check,
)
from kveval.plugins.builds.judging import claims_of, design_of
from kveval.plugins.builds.measuring import COLD, IDLE, Places, Values, values_of

VALUES = RAW["config"]


def planned(tree: Path, **more: Any) -> tuple[CheckPlan, Config]:
    plan = check_plan(VALUES, "installed", str(tree), **more)
    return plan, load_config(plan.values, CONFIG)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return source_tree(tmp_path / "candidate")


# --- what is measured


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"throughput_tok_s": 0.0}, "delivered nothing"),
        ({"throughput_tok_s": np.inf}, "with an infinite value"),
        ({"throughput_tok_s": np.nan}, "without a value"),
        # Its tests have no bound that a window of two states could widen.
        (
            {"throughput_drift": 0.8, "throughput_drift_se": 0.02},
            "the rate of tokens was not steady",
        ),
    ],
)
def test_a_run_without_a_rate_is_named(
    changes: dict[str, float],
    said: str,
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = planned(tree)[1]
    cell = next(iter(config.cells))
    pointer = tmp_path / "measurement.json"
    pointer.touch()
    level = level_row(cell.model, cell.scenario, 1, 2, 100.0) | changes
    monkeypatch.setattr(measuring, "campaign_pointer", lambda *of: pointer)
    monkeypatch.setattr(measuring, "stored_run", lambda pointer: tmp_path)
    monkeypatch.setattr(
        measuring, "run_tables", lambda *of: (pd.DataFrame([level]), None)
    )
    monkeypatch.setattr(measuring, "read_run", lambda place: None)
    monkeypatch.setattr(measuring, "described", lambda run: SimpleNamespace(levels=()))
    values, reasons = measuring.values_of(config, cell, 1)
    assert (cell, 2, "throughput_tok_s") not in values
    assert reasons == [f"{cell.path} run 1: {said}"]


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("installed", None),
        ("vllm==0.32.0", {"vllm": "0.32.0"}),
        ("lmcache==0.5.5", {"lmcache": "0.5.5"}),
        ("dist/vllm-1-py3-none-any.whl", {"wheel": "dist/vllm-1-py3-none-any.whl"}),
        ("./nowhere", {"checkout": "./nowhere"}),
        ("../vllm@v0.32.0", {"checkout": "../vllm", "commit": "v0.32.0"}),
    ],
)
def test_a_build_is_told_by_its_form(text: str, source: Any) -> None:
    assert source_of(text) == source


def test_a_folder_is_an_environment_or_a_checkout_even_with_an_at(
    tmp_path: Path,
) -> None:
    (tmp_path / "a@b" / "bin").mkdir(parents=True)
    assert source_of(str(tmp_path / "a@b")) == {"checkout": str(tmp_path / "a@b")}
    (tmp_path / "a@b" / "bin" / "python").touch()
    assert source_of(str(tmp_path / "a@b")) == {"environment": str(tmp_path / "a@b")}
    with pytest.raises(CheckError):
        source_of("torch==2.13.0")


def test_every_arm_is_there_twice_and_the_candidate_is_compared_with_the_base(
    tree: Path,
) -> None:
    plan, config = planned(tree)
    assert list(plan.cells) == [Cell.from_arm("Qwen3-0.6B", arm) for arm in ARMS]
    assert len(config.cells) == 2 * len(ARMS)
    for cell, (base, candidate) in plan.cells.items():
        assert {base, candidate} <= set(config.cells)
        assert {base.cpu_blocks, candidate.cpu_blocks} == {cell.cpu_blocks}
        assert config.baseline(candidate) == base
        assert config.build(candidate) is not None
        assert config.build(base) is None


def test_another_candidate_has_a_base_of_its_own_and_the_same_one_goes_on(
    tree: Path,
) -> None:
    first, again = planned(tree)[1], planned(tree)[1]
    (tree / CONNECTOR).write_text("DELAY = 1\n")
    other = planned(tree)[1]
    ids = [
        {config.measurement_id(cell) for cell in config.cells}
        for config in (first, again, other)
    ]
    assert ids[0] == ids[1]
    assert not ids[0] & ids[2]


def test_arms_that_a_build_does_not_concern_or_the_server_has_not_are_left_out(
    tree: Path,
) -> None:
    of_lmcache = check_plan(VALUES, "installed", "lmcache==0.5.5")
    assert [cell.arm for cell in of_lmcache.cells] == [ARMS[1]]
    without = {
        **VALUES,
        "server": {
            key: one for key, one in VALUES["server"].items() if key != "lmcache"
        },
    }
    of_server = check_plan(without, "installed", str(tree))
    assert [cell.arm for cell in of_server.cells] == [ARMS[0]]


def test_what_cannot_be_checked_is_refused(tree: Path) -> None:
    for values, more in (
        ({**VALUES, "engine": "kubernetes"}, {}),
        (VALUES, {"arms": ["native-offload"]}),
    ):
        with pytest.raises(CheckError):
            check_plan(values, "installed", str(tree), **more)


def test_the_installed_release_against_itself_is_identical_and_another_build_is_not(
    tree: Path,
) -> None:
    assert check_plan(VALUES, "installed", "vllm==0.32.0").identical
    assert not check_plan(VALUES, "installed", "vllm==0.31.0").identical
    assert not check_plan(VALUES, "vllm==0.32.0", str(tree)).identical


# --- when it stops, and what it says

Checked = Callable[..., tuple[str, int, Path]]


@pytest.fixture
def checked(tree: Path, tmp_path: Path, monkeypatch: Any) -> Checked:
    monkeypatch.chdir(tmp_path)

    def run(
        effect: float,
        sd: float = 0.005,
        missing: Callable[[Cell, int], bool] | None = None,
        idle: Callable[[Cell, int], bool] = lambda cell, run: False,
    ) -> Any:
        plan, config = planned(tree)
        generator, measured = np.random.default_rng(3), []

        def measure(
            config: Config, values: Any, block: int, places: Places
        ) -> dict[str, str]:
            measured.append(block)
            return (
                {"cell": "run 1: died of something"} if missing and block == 1 else {}
            )

        def values(config: Config, cell: Cell, run: int) -> tuple[Values, list[str]]:
            if missing and missing(cell, run):
                return {}, []
            slowed = np.exp(effect) if ".candidate." in cell.scenario else 1.0
            noise = np.exp(generator.normal(0, sd, 4))
            names = ("throughput_tok_s", COLD, "ttft_ms_p50", "e2e_ms_p50")
            rates = (100 * slowed, 2 * slowed, 300 / slowed, 900 / slowed)
            found = {
                (cell, 2, name): rate * one
                for name, rate, one in zip(names, rates, noise, strict=True)
            }
            return found | ({(cell, 2, IDLE): 1.0} if idle(cell, run) else {}), []

        monkeypatch.setattr(check, "measure_block", measure)
        monkeypatch.setattr(check, "values_of", values)
        places = Places(tree, CONFIG, tree, tree)
        done = until_clear(plan, config, places, ["kveval", "check"], print)
        write_check(done, Path(config.campaign.results))
        return done.verdict, len(measured), Path(config.campaign.results)

    return run


def test_a_slowed_build_is_a_regression_found_before_the_budget_is_spent(
    checked: Checked,
) -> None:
    verdict, blocks, folder = checked(float(np.log(0.9)))
    assert verdict == "regression"
    assert blocks < BLOCKS
    told = json.loads((folder / "verdict.json").read_text())
    assert told["verdict"] == verdict
    assert {claim["answer"] for claim in told["claims"] if claim["decides"]} & {"worse"}
    text = (folder / "COMMENT.md").read_text()
    assert text.startswith("## The candidate is slower")
    assert (folder / "effects.png").stat().st_size > 5_000
    assert "kveval check" in text


def test_an_identical_build_makes_no_difference_and_a_faster_one_an_improvement(
    checked: Checked,
) -> None:
    assert checked(0.0)[0] == "no difference that matters"
    assert checked(float(np.log(1.2)))[0] == "improvement"


def test_noise_is_not_enough_at_the_budget(checked: Checked) -> None:
    verdict, blocks, folder = checked(0.0, sd=0.3)
    assert (verdict, blocks) == ("not enough", BLOCKS)
    text = (folder / "COMMENT.md").read_text()
    assert text.startswith("## Not enough to tell")
    assert "quieter machine" in text


def test_the_far_end_of_a_very_wide_interval_is_cut_off(checked: Checked) -> None:
    _, _, folder = checked(0.0, sd=3.0)
    text = (folder / "COMMENT.md").read_text()
    assert "more than +1,000]" in text
    assert re.search(r"\de\+\d|\d{5}\.", text) is None


def test_an_open_check_says_how_many_blocks_would_show_equality(
    checked: Checked,
) -> None:
    verdict, _, folder = checked(0.0, sd=0.025)
    assert verdict == "not enough"
    assert int(
        re.search(r"--blocks (\d+)", (folder / "COMMENT.md").read_text())[1]
    ) in range(7, 25)


def test_a_run_that_fails_costs_its_block_and_is_named(checked: Checked) -> None:
    def lost(cell: Cell, run: int) -> bool:
        return run == 1 and ".candidate." in cell.scenario

    verdict, _, folder = checked(0.0, missing=lost)
    assert verdict == "no difference that matters"
    assert "died of something" in (folder / "COMMENT.md").read_text()


def test_a_candidate_that_never_gives_a_result_fails_at_the_first_look(
    checked: Checked,
) -> None:
    verdict, blocks, folder = checked(
        0.0, missing=lambda cell, run: ".candidate." in cell.scenario
    )
    assert (verdict, blocks) == ("candidate fails", 3)
    text = (folder / "COMMENT.md").read_text()
    assert text.startswith("## The candidate fails")
    assert "died of something" in text


def test_one_arm_that_the_candidate_cannot_run_makes_it_fail(checked: Checked) -> None:
    def lost(cell: Cell, run: int) -> bool:
        return cell.scenario.startswith("lmcache-local.candidate.")

    assert checked(0.0, missing=lost)[:2] == ("candidate fails", 3)


def test_nothing_measured_at_all_is_no_success(checked: Checked) -> None:
    verdict, blocks, _ = checked(0.0, missing=lambda cell, run: True)
    assert (verdict, blocks) == ("nothing measured", 3)


def test_a_base_that_never_gives_a_result_does_not_blame_the_candidate(
    checked: Checked,
) -> None:
    verdict, blocks, _ = checked(
        0.0, missing=lambda cell, run: ".base." in cell.scenario
    )
    assert (verdict, blocks) == ("not enough", BLOCKS)


def of_native(cell: Cell, run: int) -> bool:
    """Whether a cell is of the arm that is idle in these checks."""
    return cell.scenario.startswith("native-offload.")


def answers(folder: Path) -> dict[str, str]:
    """What the comment's table says of throughput, by arm."""
    rows = [
        line.strip("| ").split(" | ")
        for line in (folder / "COMMENT.md").read_text().splitlines()
    ]
    return {
        row[0].partition("/")[0]: row[-1]
        for row in rows
        if len(row) == 6 and row[1] == "Throughput"
    }


def test_a_slower_build_is_a_regression_although_its_arm_is_idle(
    checked: Checked,
) -> None:
    verdict, blocks, folder = checked(float(np.log(0.61)), idle=of_native)
    assert (verdict, blocks) == ("regression", 3)
    assert answers(folder) == {
        "native-offload": "**worse although idle**",
        "lmcache-local": "**worse**",
    }
    text = (folder / "COMMENT.md").read_text()
    assert re.search(
        r"hroughput of native-offload/3000 -39\.\d % \[[^]]*\], although idle", text
    )
    assert "served next to nothing on either build (native-offload/3000)" in text
    claims = json.loads((folder / "verdict.json").read_text())["claims"]
    assert {claim["arm"] for claim in claims if claim["idle"]} == {
        "native-offload/3000",
        "native-offload",
    }


def test_an_equal_build_of_an_idle_arm_costs_at_most_the_end_of_the_interval(
    checked: Checked,
) -> None:
    verdict, _, folder = checked(0.0, idle=of_native)
    assert verdict == "no difference that matters"
    claims = json.loads((folder / "verdict.json").read_text())["claims"]
    low = next(claim["low"] for claim in claims if claim["idle"] and claim["decides"])
    said = {
        "native-offload": f"idle, costs at most {-low:.1f} %",
        "lmcache-local": "within the margin",
    }
    assert answers(folder) == said


def test_a_faster_build_of_idle_arms_is_no_improvement_by_their_tier(
    checked: Checked,
) -> None:
    verdict, _, folder = checked(float(np.log(1.2)), idle=lambda cell, run: True)
    assert verdict == "not enough"
    assert answers(folder)["native-offload"] == "idle: the tier cannot be why"
    assert (
        "Its tier served nothing and cannot be why."
        in (folder / "COMMENT.md").read_text()
    )
    # The arms that were active decide.
    assert checked(float(np.log(1.2)), idle=of_native)[0] == "improvement"


def test_an_arm_that_is_idle_on_the_candidate_only_fails_there(
    checked: Checked,
) -> None:
    def idle(cell: Cell, run: int) -> bool:
        return of_native(cell, run) and ".candidate." in cell.scenario

    assert checked(0.0, idle=idle)[:2] == ("candidate fails", 3)
    # One idle run costs its pair.
    assert (
        checked(0.0, idle=lambda cell, run: run == 1 and idle(cell, run))[0]
        == "no difference that matters"
    )


def test_a_run_of_an_idle_arm_has_values_and_is_marked(
    tree: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    _, config = planned(tree)
    row = levels_table().iloc[0].to_dict() | {"level": 2, "exercised": False}
    pointer = tmp_path / "pointer.json"
    pointer.touch()
    run = SimpleNamespace(levels=[])
    monkeypatch.setattr(measuring, "campaign_pointer", lambda *of: pointer)
    monkeypatch.setattr(measuring, "stored_run", lambda pointer: tmp_path)
    monkeypatch.setattr(
        measuring, "run_tables", lambda *of: (pd.DataFrame([row]), None)
    )
    monkeypatch.setattr(measuring, "read_run", lambda place: None)
    monkeypatch.setattr(measuring, "described", lambda _: run)
    cell = config.cells[0]
    found, reasons = values_of(config, cell, 1)
    assert found[cell, 2, "throughput_tok_s"] == row["throughput_tok_s"]
    assert found[cell, 2, IDLE] == 1
    assert "the arm was not active" in reasons[0]


def test_the_command_that_repeats_a_check_names_the_campaign_it_is_of() -> None:
    request = CheckRequest("x", arms=["a/1", "b/2"])
    assert check_words(["mine.yaml"], request) == [
        *("kveval", "check", "mine.yaml", "--candidate", "x"),
        *("--arm", "a/1", "--arm", "b/2"),
    ]
    request = CheckRequest("x", base="y", blocks=9)
    assert check_words([], request) == [
        *("kveval", "check", "--base", "y", "--candidate", "x", "--blocks", "9"),
    ]


def test_errors_are_divided_among_what_decides(tree: Path) -> None:
    plan, config = planned(tree)
    claims = claims_of(config, plan.cells)
    assert sum(claim.decides for claim in claims) == 4
    assert design_of(config, claims).comparisons == 4
    assert {claim.arm for claim in claims if claim.quantity == COLD} == {
        "native-offload",
        "lmcache-local",
    }
