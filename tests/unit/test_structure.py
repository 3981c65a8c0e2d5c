"""The library keeps the shape that docs/architecture.md draws."""

from collections.abc import Mapping

import pytest
from tests.support import structure
from tests.support.paths import REPOSITORY

from kveval.engines.servers.registry import PROGRAMS
from kveval.spec.servers.registry import SERVERS


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


def test_a_docstring_opens_with_what_the_thing_is_or_does() -> None:
    assert structure.indirect_docstrings() == []


CONFIGURED = "speaks of keys of the configuration"
FOREIGN = "reads results of others, which are vLLM's"
VLLM_NAMED: Mapping[str, str] = {
    "engines/servers/vllm.py": "the adapter: behaviour",
    "spec/servers/vllm.py": "the adapter: names and arguments",
    "engines/local/plugin/kveval_host_offload.py": "runs inside vLLM",
    "engines/servers/lmcache.py": "LMCache's adapter: the server that it stands beside",
    "spec/routing.py": "a key of llm-d's endpoint picker",
    "spec/deployment.py": CONFIGURED,
    "config/campaign.py": CONFIGURED,
    "config/catalogue.py": CONFIGURED,
    "config/compare.py": CONFIGURED,
    "config/imports.py": CONFIGURED,
    "config/release.py": CONFIGURED,
    "importing/compared.py": CONFIGURED,
    "importing/counters.py": FOREIGN,
    "importing/describe.py": FOREIGN,
    "importing/settings.py": FOREIGN,
    "importing/table.py": FOREIGN,
    "importing/trees.py": FOREIGN,
    "load/reports/vllm_bench.py": FOREIGN,
}
"""Modules that name vLLM in a string, and why; whatever else depends on it belongs into the adapter."""


def test_vllm_is_named_where_it_has_to_be_and_nowhere_else() -> None:
    assert structure.naming_vllm() == sorted(VLLM_NAMED)


def test_every_server_has_both_halves_of_its_adapter() -> None:
    assert SERVERS.keys() == PROGRAMS.keys()
    assert all(program.software is SERVERS[name] for name, program in PROGRAMS.items())
