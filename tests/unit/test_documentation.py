"""The documentation: its commands, configuration and calls exist as they are written, and its prose is plain."""

import os
import re
from pathlib import Path

import pytest
from proselint.checks import __register__
from proselint.config import load_from
from proselint.registry import CheckRegistry
from proselint.tools import LintFile
from tests.support.documentation import prose, wrong_in
from tests.support.paths import REPOSITORY
from tests.support.reference_tables import with_tables

from kveval.verdict.verdict_words import VERDICTS, WITHOUT_VERDICT

PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "CHANGELOG.md",
]
PAGES += [REPOSITORY / "docs" / "examples" / "README.md"]
PAGES += [
    page
    for folder in ("config", "docs", "profiles")
    for page in sorted((REPOSITORY / folder).glob("*.md"))
]


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_blocks_of_code_say_what_there_is(page: Path) -> None:
    assert wrong_in(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_tables_of_reference_say_what_the_code_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    made = with_tables(text)
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        page.write_text(made, encoding="utf-8")
    assert made == text, "KVEVAL_UPDATE_GOLDEN=1 writes the tables again"


def test_every_word_for_a_result_is_explained() -> None:
    text = (REPOSITORY / "docs" / "comparisons.md").read_text(encoding="utf-8")
    table = text.partition("## Values of verdict")[2].partition("##")[0]
    words = [
        word
        for cell in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
        for word in re.findall("`(.*?)`", cell)
    ]
    assert sorted(words) == sorted((*VERDICTS, *WITHOUT_VERDICT))


def linted(text: str) -> list[str]:
    """What proselint finds, with its lines."""
    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many(__register__)
    found = LintFile("page", text).lint(load_from(REPOSITORY / ".proselintrc.json"))
    return [f"line {result.pos[0]}: {result.check_result.message}" for result in found]


def other_terms(text: str) -> list[str]:
    """The words of a page for which the glossary has another."""
    glossary = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
    table = glossary.partition("## One term for one thing")[2].partition("|---|---|\n")[
        2
    ]
    terms = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return [
        f"{word}: write {written}"
        for written, others in terms
        for word in others.split(", ")
        if re.search(
            rf"(?<![\w-]){re.escape(word)}s?(?![\w-])", text.replace("\n", " ")
        )
    ]


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_prose_is_plain_and_has_one_term_for_one_thing(page: Path) -> None:
    text = prose(page.read_text(encoding="utf-8")).partition(
        "## One term for one thing"
    )[0]
    assert linted(text) + other_terms(text) == []


def test_faults_of_prose_are_found() -> None:
    assert len(linted("This is is a very unique page.\n")) >= 2
    assert other_terms("The hit\nrates of two trials.") == [
        "trial: write run",
        "hit rate: write hit share",
    ]


@pytest.mark.parametrize(
    "command",
    [
        "snakemake --cores 4 reports",
        "snakemake report --configfile config/campaigns/smok.yaml",
        "snakemake report --configfil config/campaigns/smoke.yaml",
        "snakemake --config sites=site.yaml --workflow-profile profiles/kubernetes",
        "snakemake --config site=sites.yaml --workflow-profile profiles/kubernetes",
        "snakemake --profile profiles/slrum report",
        "snakemake --cores 4 --sdm apptainer report",
        "snakemake results/Qwen3-32B-AWQ/native-offload/peak.csv",
        "bash scripts/run.sh reports",
        "bash scripts/run.sh plan config/campaigns/smok.yaml",
        "snakemake --cores 4 plan",
        "kveval plam",
        "kveval plan config/campaigns/smok.yaml",
        "kveval plan --site sites.yaml",
        "kveval plan --set runz=3",
        "kveval prune --kind everything",
        "kveval check config/campaigns/smoke.yaml",
        "bash scripts/setup.sh pcp serverr",
        "bash scripts/bundle.sh bundle --part 50M",
        "bash scripts/test.sh tests/unit/test_none.py",
        "python benchmarks/bench_planning.py --cell 100",
        "python scripts/print_permission.py CAMPAIGN.yaml | kubectl apply -f -",
        "kveval trace requests.csv --sharing all",
        "python -m kveval.campaign --json > config/schema.json",
        "pcp-parquet -a ARCHIVE --checks",
        "mkdir results && snakmake report",
        "alias here='snakemake --cores 4'; here reports",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    assert wrong_in(f"Text:\n\n```bash\n{command}\n```\n")


@pytest.mark.parametrize(
    "block",
    [
        "```yaml\ngoodput: {ttft: 2000}\n```",
        "```yaml\nname: mine\nmatrx: []\n```",
        "```python\nfrom pcp_parquet.parquet.rates import rates\n```",
        "```python\nfrom pcp_parquet.parquet.reading import series\n\nseries(parquet, 'x', starts=1)\n```",
        "```\nsnakemake report\n```",
        "```toml\n[a]\n```",
        "Then `snakemake reports` and look.",
        "| `snakemake --cores 4 ...` | what |\n|---|---|\n| `report` | a |\n| `reports` | b |\n",
    ],
)
def test_a_wrong_block_is_found(block: str) -> None:
    assert len(wrong_in(f"Text:\n\n{block}\n")) == 1


def test_what_is_not_in_the_repository_is_a_placeholder_or_named() -> None:
    text = "Text:\n\n```bash\nA=1 snakemake report --configfile config/campaigns/NAME.yaml > out  # a report\n"
    text += "kveval prune --delete \\\n    --older-than N\nsnakemake results/figures/NAME.png\n```\n"
    assert wrong_in(text) == []
