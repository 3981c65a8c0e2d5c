"""Which files a rule depends on."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kveval
from kveval import imports
from kveval.imports import digest, files_behind, files_of

LIBRARY = Path(kveval.__file__).parent


def names(*modules: str) -> set[str]:
    return {path.relative_to(LIBRARY).as_posix() for path in files_behind(*modules)}


def test_what_a_module_imports_directly_or_not_is_behind_it() -> None:
    assert names("errors") == {"errors.py"}
    assert {"figure_data.py", "looks.py"} <= names("figures_throughput")
    assert "figures_effects.py" not in names("figures_throughput")


def test_a_package_counts_with_all_its_files() -> None:
    assert {"pcparchive/__init__.py", "pcparchive/conversion.py", "pcparchive/rates.py"} <= names("timelines")


@pytest.mark.parametrize("module", ["report", "peaks", "figures_recordings", "so_far"])
def test_nothing_that_is_imported_is_missing(module: str) -> None:
    """Importing for real, in order, never loads a file of the library that was not named."""
    found = files_behind(module)
    for path in found:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kveval."):
                inside = LIBRARY.joinpath(*str(node.module).split(".")[1:])
                assert inside.with_suffix(".py") in found or inside / "__init__.py" in found


def test_the_text_tells_of_the_same_imports_as_the_syntax_tree() -> None:
    for path in LIBRARY.rglob("*.py"):
        found = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = "." * node.level + (node.module or "")
                found |= set(imports._from(source, [alias.name for alias in node.names], path))
        own = {name.removeprefix("kveval.") for name in found if name.startswith("kveval.")}
        files = {file for name in own if (file := imports._existing(name))}
        assert files <= set(imports._imported(path)), path
        assert set(imports._imported(path)) - files <= set(imports._rest_of_package(path)), path


def test_a_folder_or_a_file_counts_by_itself() -> None:
    assert [path.name for path in files_of("style.mplstyle", "peaks")] == ["peaks.py", "style.mplstyle"]
    assert LIBRARY / "guidellm" / "reading.py" in files_of("guidellm")
    assert LIBRARY / "templates" / "captions" / "latency_comparison_all.rst" in files_of("templates")


def test_a_digest_is_that_of_names_and_texts(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(imports, "_LIBRARY", tmp_path)
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("a = 1\n")
    other.write_text("a = 1\n")
    before = digest([one])
    assert digest([other]) != before
    assert digest([other, one]) == digest([one, other]) != before
    os.utime(one, (1, 1))
    imports._text_digest.cache_clear()
    assert digest([one]) == before
    one.write_text("a = 2\n")
    imports._text_digest.cache_clear()
    assert digest([one]) != before


def test_a_module_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="no module nothing"):
        files_behind("nothing")
    with pytest.raises(FileNotFoundError, match="no module nothing"):
        files_of("nothing")


def test_planning_loads_no_library_for_tables_statistics_or_pictures() -> None:
    """Every start of snakemake, for one file or for nothing, pays what the rules import."""
    rules = LIBRARY.parents[1] / "rules"
    wanted = {
        module
        for file in rules.glob("*.smk")
        for module in re.findall(r"^from (kveval\S*) import", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }
    assert "kveval.config" in wanted
    heavy = "pandas", "scipy", "matplotlib", "seaborn", "pyarrow", "kubernetes"
    code = f"import sys, {', '.join(sorted(wanted))}; print(*[name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=LIBRARY.parent, check=True, text=True, capture_output=True
    )
    assert loaded.stdout.split() == []
