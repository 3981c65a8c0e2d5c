"""Bisecting: which builds are measured, what is concluded of them, and what is asked of git; measuring is replaced."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.config_files import CONFIG, RAW
from tests.support.source_trees import CONNECTOR, git, source_tree

from kveval.campaign.builds import BuildError
from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.workflow.check import bisect, check
from kveval.workflow.check.bisect import (
    MOST_OPEN,
    BisectRequest,
    run_bisect,
    search,
    step_design,
)
from kveval.workflow.check.campaign import CheckError
from kveval.workflow.check.commits import (
    BisectBuild,
    BuildRange,
    built,
    candidates,
)
from kveval.workflow.check.measuring import COLD, Places, Values

VALUES = RAW["config"]


# --- which builds are measured


@given(st.integers(2, 200), st.data())
def test_the_first_bad_build_is_found_in_as_few_steps_as_halving_needs(
    builds: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(1, builds - 1))
    asked: list[int] = []

    def side(number: int) -> Any:
        asked.append(number)
        return "bad" if number >= first else "good"

    assert search(builds, side) == (first - 1, first)
    assert len(asked) <= math.ceil(math.log2(max(builds - 1, 1)))
    assert len(set(asked)) == len(asked)
    assert not {0, builds - 1} & set(asked)


@given(st.integers(2, 60), st.data())
def test_builds_that_stay_open_are_passed_over_and_left_between_the_ends(
    builds: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(1, builds - 1))
    never = data.draw(st.sets(st.integers(1, builds - 2))) if builds > 2 else set()
    tried: list[int] = []

    def side(number: int) -> Any:
        tried.append(number)
        return "open" if number in never else "bad" if number >= first else "good"

    good, bad = search(builds, side)
    opened = len(never & set(tried))
    assert good < first <= bad
    assert opened <= MOST_OPEN
    if opened < MOST_OPEN:
        assert set(range(good + 1, bad)) <= never


def test_half_of_the_effect_is_the_margin_and_the_errors_are_divided() -> None:
    design = step_design(-19.0, 17, 8, 0.05)
    assert design.margin == pytest.approx(0.1)
    assert (design.first, design.budget, design.alpha) == (3, 8, 0.05 / 4)


# --- the builds of a checkout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make commits 0 to 4, of which 2 touches nothing of the package."""
    folder = source_tree(tmp_path / "tree")
    for number in range(1, 5):
        (folder / ("README.md" if number == 2 else CONNECTOR)).write_text(
            f"DELAY = {number}\n"
        )
        git(folder, "commit", "-qam", f"change {number}")
    return folder


def test_commits_between_that_change_the_package_are_the_builds(tree: Path) -> None:
    found = candidates(BuildRange(f"{tree}@HEAD~4", f"{tree}@HEAD"), "vllm")
    assert [one.title.split(" ", 1)[1] for one in found] == [
        "first",
        "change 1",
        "change 3",
        "change 4",
    ]
    assert [one.build for one in found] == [
        f"{tree}@{git(tree, 'rev-parse', f'HEAD~{n}')}" for n in (4, 3, 1, 0)
    ]
    every = candidates(
        BuildRange(f"{tree}@HEAD~4", f"{tree}@HEAD", command="make"), "vllm"
    )
    assert len(every) == 5


def test_a_working_tree_with_changes_is_the_last_build_and_a_clean_one_is_its_commit(
    tree: Path,
) -> None:
    options = BuildRange(f"{tree}@HEAD~1", str(tree))
    assert len(candidates(options, "vllm")) == 2
    (tree / CONNECTOR).write_text("DELAY = 9\n")
    assert candidates(options, "vllm")[-1].build == str(tree)


def test_builds_may_be_listed(tree: Path) -> None:
    found = candidates(BuildRange(listed=["vllm==0.31.0", str(tree)]), "vllm")
    assert found == [
        BisectBuild("vllm==0.31.0", "vllm==0.31.0"),
        BisectBuild(str(tree), str(tree)),
    ]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "no_commit_given"),
        ({"listed": ["vllm==0.31.0"]}, "no_builds"),
        ({"good": "TREE@HEAD~1", "bad": "vllm==0.32.0"}, "no_commit_given"),
        ({"good": "TREE@HEAD", "bad": "TREE@HEAD~2"}, "no_ancestor"),
        ({"good": "TREE@nothing", "bad": "TREE@HEAD"}, "no_ancestor"),
        ({"good": "TREE@HEAD", "bad": "TREE"}, "nothing_between"),
    ],
)
def test_what_is_no_range_of_builds_is_refused(
    tree: Path, options: Mapping[str, Any], code: str
) -> None:
    asked = {
        name: one.replace("TREE", str(tree)) if isinstance(one, str) else one
        for name, one in options.items()
    }
    with pytest.raises(CheckError) as error:
        candidates(BuildRange(**asked), "vllm")
    assert error.value.code == code


def test_two_checkouts_are_no_range(tree: Path, tmp_path: Path) -> None:
    other = source_tree(tmp_path / "other")
    with pytest.raises(CheckError) as error:
        candidates(BuildRange(f"{tree}@HEAD", f"{other}@HEAD"), "vllm")
    assert error.value.code == "two_checkouts"


# --- commits that have to be built

COMMAND = "echo run >> {log}; cp vllm/connector.py $WHEELS/vllm-1.0-py3-none-any.whl"


def test_a_commit_is_built_once_in_a_clone_of_its_own(
    tree: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    one = candidates(BuildRange(f"{tree}@HEAD~4", f"{tree}@HEAD"), "vllm")[1]
    made = {built(one, COMMAND.format(log=log), tmp_path / "keep") for _ in range(2)}
    assert log.read_text() == "run\n"
    assert Path(made.pop()).read_text() == "DELAY = 1\n"
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree, "rev-parse", "--abbrev-ref", "HEAD") == "main"


@pytest.mark.parametrize(
    "command", ["exit 3", "true", "touch $WHEELS/a.whl $WHEELS/b.whl"]
)
def test_a_build_that_fails_is_named_and_made_again(
    tree: Path, tmp_path: Path, command: str
) -> None:
    one = candidates(BuildRange(f"{tree}@HEAD~1", f"{tree}@HEAD"), "vllm")[1]
    for _ in range(2):
        with pytest.raises(BuildError) as error:
            built(one, command, tmp_path / "keep")
        assert error.value.code == "build_failed"
    with pytest.raises(BuildError):
        built(BisectBuild(str(tree), "the working tree"), command, tmp_path / "keep")


# --- the whole, on made-up measurements

Bisected = Callable[..., tuple[bool, str, list[str]]]


@pytest.fixture
def bisected(tree: Path, tmp_path: Path, monkeypatch: Any) -> Bisected:
    """Bisect over six commits; `effects`: ln effect of each delay, `lost`: delays whose runs all fail."""
    monkeypatch.chdir(tmp_path)
    for number in range(5, 8):
        (tree / CONNECTOR).write_text(f"DELAY = {number}\n")
        git(tree, "commit", "-qam", f"change {number}")

    def run(
        first: int,
        effect: float = math.log(0.9),
        sd: float = 0.01,
        lost: frozenset[int] = frozenset(),
        slow: str = r"native.*",
        arms: Sequence[str] = (),
    ) -> Any:
        generator, measured = np.random.default_rng(5), []

        def values(config: Config, cell: Cell, run: int) -> tuple[Values, list[str]]:
            build = config.build(cell)
            assert build is not None
            delay = int(git(tree, "show", f"{build.commit}:{CONNECTOR}").split()[-1])
            measured.append(delay)
            if delay in lost:
                return {}, ["died of something"]
            slowed = (
                np.exp(effect)
                if delay >= first and re.fullmatch(f".*/{slow}", cell.path)
                else 1.0
            )
            noise = np.exp(generator.normal(0, sd, 4))
            names = ("throughput_tok_s", COLD, "ttft_ms_p50", "e2e_ms_p50")
            rates = (100 * slowed, 2.0, 300 / slowed, 900 / slowed)
            return {
                (cell, 2, name): rate * one
                for name, rate, one in zip(names, rates, noise, strict=True)
            }, []

        monkeypatch.setattr(check, "values_of", values)
        monkeypatch.setattr(check, "measure_block", lambda *given: {})
        result = run_bisect(
            VALUES,
            BisectRequest(BuildRange(f"{tree}@HEAD~7", f"{tree}@HEAD"), arms),
            Places(tree, CONFIG, tmp_path, tmp_path / ".server-venv"),
            ["mine.yaml"],
            print,
        )
        found = result.verdict == "regression"
        return found, result.text, sorted(set(measured))

    return run


@pytest.mark.parametrize("first", [1, 4, 7])
def test_the_planted_commit_is_named_by_few_builds(
    bisected: Bisected, first: int
) -> None:
    found, text, measured = bisected(first)
    assert found
    assert text.splitlines()[0].startswith("## First slower build:")
    assert text.splitlines()[0].endswith(f"change {first}")
    assert len(measured) <= 5
    assert "kveval bisect mine.yaml --good" in text
    (written,) = Path("results/bisect").glob("*/BISECT.md")
    linked = re.findall(r"\((.*COMMENT\.md)\)", text)
    assert len(linked) == len(measured) - 1
    comments = [(written.parent / link).read_text() for link in linked]
    assert all(
        "kveval check mine.yaml" in comment and "--blocks 20" in comment
        for comment in comments
    ), "of as many blocks as it was decided in"


def test_of_two_sizes_of_a_tier_the_slower_one_is_followed(bisected: Bisected) -> None:
    arms = ["native-offload/500", "native-offload/10000"]
    found, text, _ = bisected(4, slow=r"native.*/10000", arms=arms)
    assert found
    assert text.splitlines()[0].endswith("change 4")


def test_a_bad_build_that_is_not_slower_leaves_nothing_to_bisect(
    bisected: Bisected,
) -> None:
    found, text, measured = bisected(1, effect=0.0)
    assert not found
    assert text.startswith("## Nothing to bisect")
    assert measured == [0, 7]


def test_commits_that_cannot_run_are_passed_over_and_named(bisected: Bisected) -> None:
    found, text, measured = bisected(4, lost=frozenset({3, 4}))
    assert found
    assert text.splitlines()[0].startswith("## The first slower build is one of 3")
    assert {3, 4} <= set(measured)
    assert all(f"change {number}" in text for number in (3, 4, 5))


def test_a_commit_that_does_not_build_is_passed_over(
    bisected: Bisected, monkeypatch: Any
) -> None:
    real = bisect.check_plan

    def refusing(values: Any, base: str, candidate: str, *more: Any) -> Any:
        if git(
            Path(candidate.rpartition("@")[0]),
            "show",
            f"{candidate.rpartition('@')[2]}:{CONNECTOR}",
        ).endswith("4"):
            raise BuildError("no compiler", code="build_failed")
        return real(values, base, candidate, *more)

    monkeypatch.setattr(bisect, "check_plan", refusing)
    found, text, measured = bisected(5)
    assert found
    assert 4 not in measured
    assert "no compiler" in text
