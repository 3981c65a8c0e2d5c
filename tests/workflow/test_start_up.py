"""What a start of snakemake and of a job loads, which every run of them pays."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.paths import rule_files

import kveval

pytestmark = pytest.mark.workflow
LIBRARY = Path(kveval.__file__).parent


def test_planning_loads_no_library_for_tables_statistics_or_pictures() -> None:
    """Every start of snakemake, for one file or for nothing, pays what the rules import."""
    wanted = {
        module
        for file in rule_files()
        for module in re.findall(
            r"^from (kveval\S*) import",
            file.read_text(encoding="utf-8"),
            flags=re.MULTILINE,
        )
    }
    assert "kveval.workflow.runs" in wanted
    assert (
        loaded(
            *wanted,
            among=("pandas", "scipy", "matplotlib", "seaborn", "pyarrow", "kubernetes"),
        )
        == []
    )


@pytest.mark.parametrize(
    "script", ["extract_peak", "collect_metrics", "compare_scenarios", "write_report"]
)
def test_jobs_without_figures_do_not_load_the_slowest_libraries(script: str) -> None:
    """A job a cell pays for it, which takes longer than reading the cell's runs."""
    assert loaded(script, among=("scipy.stats", "matplotlib")) == []


@pytest.mark.parametrize("script", ["plot_family", "kveval.plugins.exports.llmd"])
def test_jobs_that_estimate_nothing_do_not_load_the_library_for_estimates(
    script: str,
) -> None:
    assert loaded(script, among=("scipy",)) == []


def test_a_job_that_joins_tables_does_not_load_what_makes_them() -> None:
    made_by = ("scipy", "pydantic", "pyarrow.parquet", "kveval.stacks.registry")
    assert loaded("collect_metrics", among=made_by) == []


def test_parameters_are_recorded_alike_without_the_library_for_tables(
    tmp_path: Path,
) -> None:
    code = """
import sys
from pathlib import Path
from kveval.workflow.invocation import record_parameters_without_pandas
from snakemake.persistence.file import FilePersistence

if "without" in sys.argv:
    record_parameters_without_pandas()
values = ["a", 1, 0.5, None, True, ["a", {"b": 1}], ("c",), {"d"}, Path("e"), object()]
record = FilePersistence(path=Path(sys.argv[1]))
print([record._serialize_param(value) for value in values][:8], "pandas" in sys.modules)
print([type(record._serialize_param(value)).__name__ for value in values])
"""
    with_it, without = (
        subprocess.run(
            [sys.executable, "-c", code, tmp_path, how],
            cwd=LIBRARY.parent,
            check=True,
            text=True,
            capture_output=True,
        ).stdout
        for how in ("with", "without")
    )
    assert "True\n" in with_it
    assert without == with_it.replace("True\n", "False\n")


def loaded(*modules: str, among: Sequence[str]) -> list[str]:
    """Return which of `among` are there once the modules have been imported."""
    code = f"import sys, {', '.join(sorted(modules))}; print(*[name for name in {among} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=LIBRARY.parent,
        check=True,
        text=True,
        capture_output=True,
    )
    return done.stdout.split()
