"""Write the peak of every cell as a benchmark report in llm-d-benchmark's format."""

from pathlib import Path

from kveval.report.data.reading import read_measured, read_report_plan
from kveval.report.export.llmd import write_peak_reports

if __name__ == "__main__":
    inputs, listed = snakemake.input, Path(snakemake.output[0])
    measured = read_measured(
        Path(inputs.levels),
        Path(inputs.peaks),
        Path(inputs.comparison),
        Path(inputs.runs),
    )
    plan, results = read_report_plan(snakemake.params.plan, {}), listed.parents[1]
    files = {
        cell: results / cell.path / "benchmark_report_v0.2.yaml" for cell in plan.cells
    }
    write_peak_reports(measured, plan.name, files)
    listed.write_text("".join(f"{file}\n" for file in files.values()))
