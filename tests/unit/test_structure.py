"""The library keeps the shape that docs/architecture.md draws."""

import ast
from pathlib import Path

import pytest
from tests.support import nesting, structure, trend
from tests.support.paths import REPOSITORY


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
    outward = ("pcp_parquet.archive.files", "kveval.host.files")
    core = ("kveval.workflow.runs", "kveval.plugins.traces.trace_making")
    beside = ("kveval.plugins.attach.survey", "kveval.plugins.traces.trace_making")
    wrong = [back, outward, core, beside]
    assert structure.forbidden([*edges, *wrong]) == wrong
    ring = [
        ("kveval.host.files", "kveval.host.http"),
        ("kveval.host.http", "kveval.host.files"),
    ]
    assert structure.circles([*edges, *ring]) != []


def test_the_tour_has_every_package() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [name for name in structure.packages() if f"`{name}/`" not in text] == []


def test_a_class_name_occurs_once() -> None:
    assert structure.repeated_classes() == []


def test_a_docstring_opens_with_what_the_thing_is_or_does() -> None:
    assert structure.indirect_docstrings() == []


def test_vllm_is_named_where_it_has_to_be_and_nowhere_else() -> None:
    assert structure.naming_vllm() == sorted(structure.VLLM_NAMED)


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("a if b else c", 0),
        ("a if b else c if d else e", 1),
        ("(a if b else c) if d else (e if f else g)", 2),
        ("f(lambda: [a if b else c]) if d else e", 1),
        ("[a for b in c for d in b]", 0),
        ("[a for b in c]; [d for e in f]", 0),
        ("[[a for b in c] for d in e]", 1),
        ("[a for b in {c: d for e in f}]", 1),
        ("any(a for b in sorted(c, key=lambda d: sum(e for e in d)))", 1),
        ("{a for b in c if [d for e in f if {g for h in i}]}", 2),
        ("[a if b else c for d in e]", 0),
    ],
)
def test_a_nested_expression_is_found(code: str, count: int) -> None:
    assert len(list(nesting.nested(ast.parse(code)))) == count


def test_places_name_the_line_of_a_package_and_those_below_it(tmp_path: Path) -> None:
    inner = tmp_path / "kveval" / "load" / "reports"
    inner.mkdir(parents=True)
    (inner / "one.py").write_text("a = 1\nb = [[c for c in d] for d in e]\n")
    (tmp_path / "loader.py").write_text("a if b else c if d else e\n")
    place = "scripts/kveval/load/reports/one.py:2: nested comprehension"
    for name in ("load", "kveval/load", "kveval.load.reports", "scripts/kveval/load"):
        assert nesting.places(name, tmp_path) == [place]
    other = "scripts/loader.py:1: nested conditional"
    assert nesting.places("scripts", tmp_path) == [other]
    assert sorted(nesting.places("", tmp_path)) == [place, other]
    assert nesting.places("loa", tmp_path) == []
    assert nesting.counted(tmp_path) == {"kveval.load.reports": 1, "scripts": 1}


def test_no_nested_expression_comes_and_none_that_went_is_kept_in_the_list() -> None:
    advice = "fewer: python -m tests.support.structure nested --update"
    assert nesting.counted() == nesting.left(), advice


def test_the_structure_is_printed_with_its_trend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trend, "described", lambda _edges: ["tokens: 3"])
    assert structure.main() == 0
    printed = capsys.readouterr().out
    assert "against the direction: 0, circles: 0" in printed
    assert "  tokens: 3" in printed
    assert structure.main(["nested", "no_package"]) == 0
    assert structure.main(["folded"]) == 2


def test_tokens_are_counted_without_comments_and_docstrings() -> None:
    code = 'def f(a):\n    """Return it."""\n    # As it is.\n    return "a" + a\n'
    tokens = ["def", "f", "(", "a", ")", ":", "return", "'a'", "+", "a"]
    assert trend.token_count(code) == len(tokens)


def test_tokens_of_a_folder_and_words_of_its_pages_are_counted(tmp_path: Path) -> None:
    assert trend.tokens_below(tmp_path / "plugins") == 0
    (tmp_path / "reading").mkdir()
    (tmp_path / "reading" / "one.py").write_text("a = b\n")
    (tmp_path / "two.py").write_text("c\n")
    (tmp_path / "page.md").write_text("# Two words\n\nand three more\n")
    assert trend.tokens_below(tmp_path) == 4
    assert trend.pages_and_words(tmp_path) == (1, 6)


def test_names_that_one_other_module_uses_are_counted() -> None:
    code = {
        "one.py": "def f(): ...\ndef g(): ...\ndef _own(): ...\nclass C: ...",
        "two.py": "from one import f, g\nf()",
        "three.py": "import one\none.f()",
    }
    trees = {Path(name): ast.parse(text) for name, text in code.items()}
    assert trend.public_names(trees) == (3, 2)
