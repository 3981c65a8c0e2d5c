"""Which files a rule depends on."""

import ast
import contextlib
import importlib
import os
import re
import sys
from pathlib import Path

import pytest
from tests.support.paths import library_files, rule_files

import kveval
from kveval.workflow import code_digest as imports
from kveval.workflow.code_digest import digest, files_behind

SCRIPTS = Path(kveval.__file__).parents[1]
# The script of every rule that has a digest of its code, and the modules that it imports by a name made at run time.
SCRIPTED = sorted(
    set(
        re.findall(
            r'code_behind\(\s*"([\w/]+)"',
            "".join(file.read_text(encoding="utf-8") for file in rule_files()),
        )
    )
)


def names(script: str, *modules: str) -> set[str]:
    return {
        path.relative_to(SCRIPTS).as_posix()
        for path in files_behind(SCRIPTS / f"{script}.py", *modules)
    }


def test_what_a_script_imports_directly_or_not_is_behind_it() -> None:
    load = names("extract_peak")
    # What a hand-kept list forgot, and made stale tables of.
    assert {
        "extract_peak.py",
        "kveval/load/levels.py",
        "kveval/tables/levels/outcomes.py",
        "pcp_parquet/__init__.py",
        "pcp_parquet/archive/problems.py",
    } <= load
    others = ("kveval/report/", "kveval/engines/", "kveval/workflow/command/")
    # What a plug-in adds to the command is no code behind its rules.
    both = load | names("import_run")
    assert not any(name.startswith(others) for name in both)


def test_a_module_that_is_imported_by_a_name_made_at_run_time_is_named() -> None:
    drawn = names("plot_family", "kveval.report.figures.throughput")
    assert {"kveval/report/figures/axes.py", "kveval/report/data/style.py"} <= drawn
    assert "kveval/report/figures/effects.py" not in drawn


def test_files_beside_the_modules_count() -> None:
    written, drawn = (
        names("write_report"),
        names("plot_family", "kveval.report.figures.throughput"),
    )
    said = {"kveval/report/html/page.css"}
    assert said <= written
    assert "kveval/report/figures/style.mplstyle" in drawn
    # The package report is begun for the sake of the figures in it: what lies beside its own modules is not theirs.
    assert not said & drawn


def loaded_by(script: str, listed: Path) -> list[str]:
    """Return the files of the library that Python loads for a script.

    In a copy of this process that has forgotten the library, and not what the library imports of others, whose start
    takes long; `listed` is where it leaves the list.
    """
    child = os.fork()
    if child == 0:
        ours = (*imports._PACKAGES, *SCRIPTED)
        for name in [name for name in sys.modules if name.split(".")[0] in ours]:
            del sys.modules[name]
        with contextlib.suppress(BaseException):
            importlib.import_module(script.replace("/", "."))
            found = [
                m.__file__
                for name, m in sys.modules.items()
                if name.split(".")[0] in imports._PACKAGES and m.__file__
            ]
            listed.write_text("\n".join(found), encoding="utf-8")
        os._exit(0)
    os.waitpid(child, 0)
    return listed.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("script", SCRIPTED)
def test_every_edit_of_a_module_that_a_script_loads_changes_its_digest(
    script: str, tmp_path: Path
) -> None:
    """What Python really loads for a script is a part of what is hashed, and each file of it counts."""
    wanted = {
        Path(file)
        for file in loaded_by(script, tmp_path / "files")
        if Path(file).stat().st_size
    }
    if "/" in script:
        # A plug-in's package only adds it to the command and the workflow.
        wanted -= {*SCRIPTS.rglob("__init__.py"), *SCRIPTS.rglob("workflow/**/*.py")}
    found = files_behind(SCRIPTS / f"{script}.py")
    assert wanted <= {*found}
    before, real = digest(found), imports._text_digest
    for path in found:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                imports,
                "_text_digest",
                lambda file, edited=path: "edited" if file == edited else real(file),
            )
            assert digest(found) != before, path


def test_the_text_tells_of_the_same_imports_as_the_syntax_tree() -> None:
    for path in library_files():
        found = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                assert not any(
                    alias.name.split(".")[0] in imports._PACKAGES
                    for alias in node.names
                ), path
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, path
                found |= {
                    node.module,
                    *(f"{node.module}.{alias.name}" for alias in node.names),
                }
        own = {name for name in found if name.split(".")[0] in imports._PACKAGES}
        files = {file for name in own if (file := imports._file(name))}
        found = set(imports._imported(path))
        assert files <= found, path
        assert {file.name for file in found - files} <= {"__init__.py"}, path


def test_a_digest_is_that_of_names_and_texts(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(imports, "_SCRIPTS", tmp_path)
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
    with pytest.raises(FileNotFoundError, match="no module"):
        files_behind(SCRIPTS / "extract_peak.py", "kveval.nothing")


def test_an_edit_of_a_template_of_another_distribution_is_one_of_the_code(
    tmp_path: Path,
) -> None:
    template = tmp_path / "toy.md.j2"
    digests = set()
    for text in ("## Toys", "## Games"):
        template.write_text(text)
        imports._text_digest.cache_clear()
        digests.add(imports.code_behind("write_report", beside=[template]))
    assert len(digests) == 2
