"""The library keeps the shape that docs/architecture.md draws."""

import pytest
from tests.support import structure
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="module")
def edges() -> list[tuple[str, str]]:
    return structure.imports()


def test_packages_import_in_one_direction(edges: list[tuple[str, str]]) -> None:
    assert len(edges) > 500
    assert structure.forbidden(edges) == []


def test_no_members_of_any_package_import_each_other_in_a_circle(edges: list[tuple[str, str]]) -> None:
    assert structure.circles(edges) == []


def test_a_wrong_import_and_a_circle_are_found(edges: list[tuple[str, str]]) -> None:
    back = ("kveval.host.files", "kveval.report.report")
    assert structure.forbidden([*edges, back]) == [back]
    ring = [("kveval.host.files", "kveval.host.http"), ("kveval.host.http", "kveval.host.files")]
    assert structure.circles([*edges, *ring]) != []


def test_the_top_and_every_folder_stay_small() -> None:
    assert len(structure.entries()) <= 12
    assert {folder: count for folder, count in structure.sizes().items() if count > 16} == {}


def test_the_tour_has_every_package() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {folder.removeprefix("kveval/") for folder in structure.sizes() if folder != "kveval"}
    assert {folder for folder in folders if f"`{folder.split('/')[0]}/`" not in text} == set()


def test_a_class_name_occurs_once() -> None:
    assert structure.repeated_classes() == []
