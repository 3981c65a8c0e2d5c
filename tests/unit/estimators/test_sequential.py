"""Looking after every block errs no more often than it says, and stops early when the answer is clear."""

from collections import Counter

import numpy as np
import pytest
from scipy import special

from kveval.estimators.sequential import (
    Design,
    alpha_spent,
    blocks_for_equality,
    evaluate_look,
    nominal_levels,
)

SPREAD = 0.02
CHECKS = 1500


def checked(
    effect: float,
    design: Design,
    *,
    checks: int = CHECKS,
    spread: float = SPREAD,
    seed: int = 1,
) -> Counter:
    """Count the answers of simulated checks, each stopped at its first answer; differences of ln values."""
    generator = np.random.default_rng(seed)
    answers: Counter[str] = Counter()
    for values in generator.normal(0, spread, (checks, design.budget, 2)):
        blocks = generator.normal(0, 0.1, design.budget)
        base, candidate = values[:, 0] + blocks, values[:, 1] + blocks + effect
        looks = (
            evaluate_look(base[:n], candidate[:n], design)
            for n in range(design.first, design.budget + 1)
        )
        found = next((one for one in looks if one.answer != "open"), None)
        answers[found.answer if found else "open"] += 1
        answers["blocks"] += found.blocks if found else design.budget
    return answers


def test_all_is_spent_at_the_end_and_next_to_nothing_at_the_beginning() -> None:
    assert alpha_spent(1.0, 0.05) == pytest.approx(0.05)
    assert alpha_spent(0.25, 0.05) < 1e-4
    assert [alpha_spent(part, 0.05) for part in (0.3, 0.6, 0.9)] == sorted(
        alpha_spent(part, 0.05) for part in (0.3, 0.6, 0.9)
    )


def test_the_levels_are_those_of_published_bounds() -> None:
    """Five equal looks, alpha 0.05, as the programs of Lan and DeMets' authors (ldbounds) give them."""
    bounds = [
        float(-special.ndtri(level / 2))
        for level in nominal_levels(1, 5, 0.05).values()
    ]
    assert bounds == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=0.002)


def test_one_look_is_the_plain_test() -> None:
    assert nominal_levels(6, 6, 0.05) == {6: pytest.approx(0.05)}


@pytest.mark.parametrize("budget", [4, 6, 10])
@pytest.mark.parametrize("comparisons", [1, 5])
def test_an_identical_build_is_seldom_called_slower_or_faster(
    budget: int, comparisons: int
) -> None:
    design = Design(3, budget, alpha=0.05, margin=1e-6, comparisons=comparisons)
    found = checked(0.0, design)
    # Of any direction, and with a margin that lets every difference count.
    assert (found["worse"] + found["better"]) / CHECKS <= 0.05 / comparisons + 0.02


def test_a_build_slowed_by_a_tenth_is_found_and_stops_before_the_budget() -> None:
    design = Design(3, 8, comparisons=3)
    found = checked(np.log(1 / 1.1), design)
    assert found["worse"] / CHECKS > 0.97
    assert found["equal"] == 0
    assert found["blocks"] / CHECKS < 6


def test_an_equality_that_is_none_is_seldom_said() -> None:
    design = Design(3, 8)
    found = checked(float(-np.log1p(design.margin)), design)
    assert found["equal"] / CHECKS <= design.alpha + 0.015


def test_an_identical_build_is_shown_to_be_equal() -> None:
    assert checked(0.0, Design(3, 8))["equal"] / CHECKS > 0.8


def test_noise_that_hides_everything_is_not_enough() -> None:
    found = checked(0.0, Design(3, 6), spread=0.2)
    assert found["open"] / CHECKS > 0.9


def test_the_interval_covers_at_all_looks_together() -> None:
    generator, design, misses = np.random.default_rng(5), Design(3, 6), 0
    for values in generator.normal(0, SPREAD, (CHECKS, design.budget)):
        looks = [
            evaluate_look(np.zeros(n), values[:n] + 0.01, design)
            for n in range(3, design.budget + 1)
        ]
        truth = 100 * np.expm1(0.01)
        misses += any(not one.low <= truth <= one.high for one in looks)
    assert misses / CHECKS <= 0.07


def test_less_is_better_of_times() -> None:
    base, design = np.array([0.0, 0.01, 0.0, 0.01]), Design(3, 4)
    slower = evaluate_look(
        base, base + np.array([0.3, 0.31, 0.3, 0.3]), design, more_is_better=False
    )
    assert (slower.answer, round(slower.effect)) == ("worse", 35)


def test_too_few_blocks_say_nothing() -> None:
    assert evaluate_look(np.zeros(2), np.ones(2), Design(3, 6)).answer == "open"
    assert evaluate_look(np.zeros(0), np.zeros(0), Design(3, 6)).blocks == 0


@pytest.mark.parametrize("sd", [0.02, 0.05])
def test_so_many_blocks_as_are_proposed_show_equality_nearly_always(sd: float) -> None:
    generator = np.random.default_rng(4)
    blocks = blocks_for_equality(sd * np.sqrt(2), Design(3, 6))
    assert blocks is not None
    design = Design(3, blocks)
    shown = 0
    for _ in range(100):
        base, candidate = generator.normal(0, sd, (2, blocks))
        shown += any(
            evaluate_look(base[:n], candidate[:n], design).answer == "equal"
            for n in range(3, blocks + 1)
        )
    assert shown >= 80


def test_noise_that_no_check_gets_through_has_no_number_of_blocks() -> None:
    assert blocks_for_equality(0.5, Design(3, 6)) is None
    assert blocks_for_equality(0.0, Design(3, 6)) == 3
