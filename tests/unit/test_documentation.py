"""The documentation: its commands, fragments of configuration and Python exist as they are written."""

from pathlib import Path

import pytest
from tests.support.documentation import wrong_in
from tests.support.paths import REPOSITORY

PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]
PAGES += [page for folder in ("config", "docs", "profiles") for page in sorted((REPOSITORY / folder).glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_blocks_of_code_say_what_there_is(page: Path) -> None:
    assert wrong_in(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "command",
    [
        "snakemake --cores 4 reprot",
        "snakemake report --configfile config/campaigns/smok.yaml",
        "snakemake report --configfil config/campaigns/smoke.yaml",
        "snakemake --config sites=site.yaml --workflow-profile profiles/kubernetes",
        "snakemake --config site=sites.yaml --workflow-profile profiles/kubernetes",
        "snakemake --profile profiles/slrum report",
        "snakemake --cores 4 --sdm apptainer report",
        "snakemake results/Qwen3-32B-AWQ/native-offload/peak.csv",
        "bash scripts/run.sh reprot",
        "bash scripts/setup.sh pcp serverr",
        "bash scripts/bundle.sh bundle --part 50M",
        "bash scripts/test.sh tests/unit/test_none.py",
        "python benchmarks/bench_planning.py --cell 100",
        "python scripts/print_permission.py CAMPAIGN.yaml | kubectl apply -f -",
        "python -m kveval.load.trace_forms mooncake a.jsonl b.jsonl",
        "python -m kveval.spec --json > config/schema.json",
        "pcp-parquet -a ARCHIVE --checks",
        "mkdir results && snakmake report",
        "alias here='snakemake --cores 4'; here reprot",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    assert wrong_in(f"Text:\n\n```bash\n{command}\n```\n")


@pytest.mark.parametrize(
    "block",
    [
        "```yaml\ngoodput: {ttft: 2000}\n```",
        "```yaml\nname: mine\nmatrx: []\n```",
        "```python\nfrom kveval.pcp.parquet.rates import rates\n```",
        "```python\nfrom kveval.pcp.parquet.reading import series\n\nseries(parquet, 'x', starts=1)\n```",
        "```\nsnakemake report\n```",
        "```toml\n[a]\n```",
        "Then `snakemake reprot` and look.",
        "| `snakemake --cores 4 ...` | what |\n|---|---|\n| `report` | a |\n| `reprot` | b |\n",
    ],
)
def test_a_wrong_block_is_found(block: str) -> None:
    assert len(wrong_in(f"Text:\n\n{block}\n")) == 1


def test_what_is_not_in_the_repository_is_a_placeholder_or_named() -> None:
    text = "Text:\n\n```bash\nA=1 snakemake report --configfile config/campaigns/NAME.yaml > out  # a report\n"
    text += "snakemake prune --config \\\n    prune=delete\nsnakemake results/figures/NAME.png\n```\n"
    assert wrong_in(text) == []
