"""What is published, made by Snakemake from a made-up campaign: what is there, and what an edit makes anew."""

import os
import re
from pathlib import Path

import pytest
from tests.support.loaded import snakemake
from tests.support.report_text import whole_report
from tests.support.synthetic_workflow import make_workflow

from kveval.campaign.cell import Cell
from kveval.report.figures.names import FAMILIES, drawn_figures

pytestmark = pytest.mark.workflow
CELLS = [Cell("Qwen3-8B", "no-offload", 0), Cell("Qwen3-8B", "native-offload", 10_000)]
DRAWN = {f"plot_{family}" for family in FAMILIES}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    make_workflow(folder, CELLS)
    snakemake(folder, "--touch", "results/analysis/comparison.csv")
    snakemake(folder, "report")
    return folder


def test_everything_that_is_promised_is_there(published: Path) -> None:
    results = published / "results"
    drawn, lacking = drawn_figures(results / "figures" / family for family in FAMILIES)
    assert set(lacking) == {"pcp_lmcache", "reuse_by_tier_size"}
    assert len(drawn) == 16
    for figure in drawn:
        for suffix in (".png", ".svg"):
            assert figure.with_suffix(suffix).stat().st_size > 1000
    for name in (
        "summary",
        "detailed",
        "pcp_summary_stats",
        "complete_metrics",
        "comparison",
    ):
        assert (results / "analysis" / f"{name}.csv").read_text().count("\n") > 1
    for cell in CELLS:
        assert (results / cell.path / "benchmark_report_v0.2.yaml").exists()
    report = whole_report(results)
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", report):
        assert (results / path).exists()
    assert (results / "report.json").exists()


def edit(folder: Path, path: str) -> None:
    """Change what a file says and not what it does."""
    file = folder / "scripts" / "kveval" / path
    file.write_text(
        file.read_text(encoding="utf-8")
        + ("\n# edited\n" if path.endswith(".py") else "\nEdited.\n")
    )


@pytest.mark.parametrize(
    ("path", "planned"),
    [
        ("report/figures/effects.py", {"plot_effects", "write_report"}),
        ("report/facts/caches.py", {"write_report"}),
        ("report/templates/guidance.md.j2", {"write_report"}),
        ("tables/system/timelines.py", {"plot_recordings", "write_report"}),
        ("plugins/exports/llmd.py", {"export_benchmark_reports"}),
        ("plugins/exports/benchmark_report.yaml.j2", {"export_benchmark_reports"}),
        (
            "plugins/curve/simulation/curve.py",
            {
                *("predict_hits", "predict_campaign", "compare_scenarios"),
                *("summarise_campaign", *DRAWN, "write_report"),
            },
        ),
        (
            "report/data/style.py",
            {*DRAWN, "write_report", "summarise_campaign"},
        ),
    ],
)
def test_an_edit_makes_anew_what_it_touches(
    published: Path, path: str, planned: set[str]
) -> None:
    file = published / "scripts" / "kveval" / path
    before, times = file.read_bytes(), file.stat()
    edit(published, path)
    try:
        output = snakemake(published, "-n", "report")
    finally:
        file.write_bytes(before)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    jobs = output.split("Job stats:")[-1].split("total")[0]
    assert (
        set(re.findall(r"^(\w+) +\d+$", jobs, flags=re.MULTILINE)) - {"report"}
        == planned
    )


def test_a_second_run_has_nothing_to_do(published: Path) -> None:
    assert "Nothing to be done" in snakemake(published, "report")


def test_snakemakes_own_report_shows_figures_tables_and_the_report(
    published: Path, tmp_path: Path
) -> None:
    output = tmp_path / "report.html"
    snakemake(published, "report", "--report", str(output))
    text = output.read_text(encoding="utf-8")
    for figure in drawn_figures(
        published / "results" / "figures" / family for family in FAMILIES
    )[0]:
        assert figure.name in text
    assert "grey band" in text
    for path in (
        "report.html",
        "analysis/summary.csv",
        "analysis/comparison.csv",
        "analysis/peak_throughput_all.csv",
    ):
        assert f'"results/{path}": {{"name"' in text


def test_a_figure_is_made_by_its_name_and_refused_where_there_is_none(
    published: Path,
) -> None:
    figures = published / "results" / "figures"
    snakemake(published, "results/figures/peak_throughput_all_scenarios.png")
    copied = figures / "peak_throughput_all_scenarios.png"
    assert copied.read_bytes() == (figures / "arms" / copied.name).read_bytes()
    with pytest.raises(AssertionError, match="NotDrawnError"):
        snakemake(published, "results/figures/pcp_lmcache.png")
    assert not (figures / "pcp_lmcache.png").exists()
