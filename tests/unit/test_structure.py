"""The library keeps the shape that docs/architecture.md draws."""

import pytest
from tests.support import structure
from tests.support.paths import REPOSITORY

from kveval.campaign.servers.registry import SERVERS
from kveval.engines.servers.registry import PROGRAMS


@pytest.fixture(scope="module")
def edges() -> list[tuple[str, str]]:
    return structure.imports()


def test_packages_import_in_one_direction(edges: list[tuple[str, str]]) -> None:
    assert len(edges) > 500
    assert structure.forbidden(edges) == []


def test_no_members_of_any_package_import_each_other_in_a_circle(
    edges: list[tuple[str, str]],
) -> None:
    assert structure.circles(edges) == []


def test_a_wrong_import_and_a_circle_are_found(edges: list[tuple[str, str]]) -> None:
    back = ("kveval.host.files", "kveval.report.report")
    assert structure.forbidden([*edges, back]) == [back]
    ring = [
        ("kveval.host.files", "kveval.host.http"),
        ("kveval.host.http", "kveval.host.files"),
    ]
    assert structure.circles([*edges, *ring]) != []


def test_the_top_and_every_folder_stay_small() -> None:
    assert len(structure.entries()) <= structure.MOST_ENTRIES
    sizes = structure.sizes().items()
    assert {
        folder: count for folder, count in sizes if count > structure.MOST_MODULES
    } == {}


def test_the_tour_has_every_package() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {
        folder.removeprefix("kveval/")
        for folder in structure.sizes()
        if folder != "kveval"
    }
    assert {
        folder for folder in folders if f"`{folder.split('/')[0]}/`" not in text
    } == set()


def test_a_class_name_occurs_once() -> None:
    assert structure.repeated_classes() == []


def test_a_docstring_opens_with_what_the_thing_is_or_does() -> None:
    assert structure.indirect_docstrings() == []


def test_vllm_is_named_where_it_has_to_be_and_nowhere_else() -> None:
    assert structure.naming_vllm() == sorted(structure.VLLM_NAMED)


def test_every_server_has_both_halves_of_its_adapter() -> None:
    assert SERVERS.keys() == PROGRAMS.keys()
    assert all(program.software is SERVERS[name] for name, program in PROGRAMS.items())


def test_the_structure_is_printed_with_its_bounds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert structure.main() == 0
    printed = capsys.readouterr().out
    assert f"lines of Python in scripts/: {structure.lines()}" in printed
    assert "against the direction: 0, circles: 0" in printed
