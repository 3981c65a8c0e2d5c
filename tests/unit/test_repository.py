"""The files around the code agree: links in Markdown, GitHub's files, the version."""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.markdown import parts_of
from tests.support.paths import REPOSITORY

import kveval

FOLDERS = ("", "config", "docs", "envs", "profiles", "scripts", "tests", ".github")
# Reports of made-up campaigns, without their figures.
GOLDEN = REPOSITORY / "tests" / "unit" / "report" / "golden"
PAGES = [
    page
    for folder in FOLDERS
    for page in sorted((REPOSITORY / folder).glob("**/*.md" if folder else "*.md"))
    if page.parent != GOLDEN
]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
# A path of the repository, by itself in a command.
NAMED_FILE = re.compile(r"(?<![\w/.-])(?:scripts|config|tests|envs)/[\w./-]+")


def anchors(page: Path) -> Iterator[str]:
    """The anchors that GitHub gives to the headings of a page; none of ours occurs twice on one page."""
    text = re.sub(
        r"^```.*?^```",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    for heading in re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        yield re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def broken(page: Path) -> list[str]:
    """The links of a page that lead to no file or heading of the repository; addresses elsewhere are not looked up."""
    found = []
    for link in parts_of(page.read_text(encoding="utf-8")).links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `x`: two\n\n[a](none.md) [b](page.md#one-x-two) [c](#three) [d](https://localhost/)\n"
    )
    assert broken(page) == ["none.md", "#three"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_of_github_names_files_that_exist(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert steps
    assert all(("run" in step) != ("uses" in step) for step in steps)
    named = [path for step in steps for path in NAMED_FILE.findall(step.get("run", ""))]
    assert [path for path in named if not (REPOSITORY / path).exists()] == []


@pytest.mark.parametrize("form", ["bug.yml", "feature.yml"])
def test_an_issue_form_has_what_github_requires(form: str) -> None:
    read = yaml.safe_load(
        (REPOSITORY / ".github" / "ISSUE_TEMPLATE" / form).read_text()
    )
    assert read["name"]
    assert read["description"]
    assert all(
        part["type"] in {"textarea", "input"} and part["attributes"]["label"]
        for part in read["body"]
    )


def test_the_catalog_and_the_citation_have_what_their_formats_require() -> None:
    usage = yaml.safe_load(
        (REPOSITORY / ".snakemake-workflow-catalog.yml").read_text()
    )["usage"]
    assert usage["software-stack-deployment"]["conda"] is True
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}


def test_the_version_is_in_one_place_and_has_a_section_of_the_changelog() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "kveval.__version__"
    }
    headings = re.findall(
        r"^## \[(.+?)\] - (?:Unreleased|\d{4}-\d\d-\d\d)$",
        (REPOSITORY / "CHANGELOG.md").read_text(),
        re.M,
    )
    assert headings[0] == kveval.__version__
    sources = [
        path
        for path in (REPOSITORY / "scripts").rglob("*.py")
        if path != Path(kveval.__file__)
    ]
    assert [
        path.name
        for path in sources
        if f"kveval {kveval.__version__}" in path.read_text(encoding="utf-8")
    ] == []
    assert "version" not in yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "benchmarks").glob("*.py")), ids=lambda path: path.stem
)
def test_a_benchmark_imports_what_the_library_has(path: Path) -> None:
    """Benchmarks take too long to be run by tests."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith(("kveval", "pcp_parquet"))
        ):
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                assert hasattr(module, name) or importlib.import_module(
                    f"{node.module}.{name}"
                )
