"""The mistakes that are made on purpose: the same for the same seed, each a change of one expression."""

import ast
from operator import itemgetter

import pytest
from tests.support.accepted_mutants import REASONS
from tests.support.mutants import GROUPS, Mutant, Nearest, drawn, mutants_of
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="module")
def mutants() -> list[Mutant]:
    return drawn(seed=3, count=80)


def test_a_larger_number_begins_with_the_mutants_of_a_smaller_one(
    mutants: list[Mutant],
) -> None:
    assert drawn(seed=3, count=12) == mutants[:12]
    assert len({mutant.name for mutant in mutants}) == len(mutants) == 80
    for number, places in enumerate(GROUPS.values()):
        files = {mutant.file for mutant in mutants[number :: len(GROUPS)]}
        beginnings = tuple(f"scripts/kveval/{place}" for place in places)
        assert all(file.startswith(beginnings) for file in files)


def test_a_mutant_is_another_program_that_can_be_read(mutants: list[Mutant]) -> None:
    for mutant in mutants:
        source = (REPOSITORY / mutant.file).read_bytes()
        assert source[mutant.start : mutant.end].decode() == mutant.before
        after, before = (
            ast.parse(f"({text})") for text in (mutant.after, mutant.before)
        )
        assert ast.dump(after) != ast.dump(before)
        ast.parse(mutant.apply(source))


@pytest.mark.parametrize("key", REASONS, ids=itemgetter(0))
def test_a_reason_belongs_to_a_mutant_that_there_is(key: tuple[str, str, str]) -> None:
    reason = REASONS[key]
    mutants = mutants_of(REPOSITORY / "scripts" / "kveval" / key[0])
    assert [mutant.reason for mutant in mutants if mutant.reason == reason] == [reason]


def test_the_nearest_tests_say_most_of_what_was_changed() -> None:
    nearest = Nearest()

    def tests(file: str, text: str) -> list[str]:
        path = REPOSITORY / "scripts" / "kveval" / file
        mutants = (one for one in mutants_of(path) if one.before == text)
        return nearest.tests(next(mutants), 3)

    of_images = tests("configuration/warnings.py", "images[base] != image")
    assert "tests/unit/configuration/test_config_deployment.py" in of_images
    assert "tests/unit/plugins/curve/test_service.py" in tests(
        "plugins/curve/simulation/service.py", "self.held.get(group, 0) + 1"
    )
