# From load reports and system metrics to the campaign's numbers: tables and peaks of cells, tables over all cells,
# comparisons.


# One job per cell: starting Python and pandas takes several times as long as reading a run.
rule extract_peak:
    input:
        measurements=runs_of_cell,
        stored=files_of_cell(*RUN_FILES),
        pcp=files_of_cell("pcp.parquet"),
        conditions=files_of_cell("conditions.json"),
    output:
        requests=f"{CELL}/requests.parquet",
        levels=f"{CELL}/levels.csv",
        peak=f"{CELL}/peak.csv",
    log:
        f"{LOGS}/{{so_far}}extract_peak/{{model}}/{{scenario}}/{{cpu_blocks}}.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        required=lambda wildcards: run_of(wildcards).required,
        min_samples=CAMPAIGN.min_samples,
        goodput=json.dumps(CAMPAIGN.goodput and CAMPAIGN.goodput.declared),
        lenient=lenient,
        metrics=METRICS,
        library=code_behind("extract_peak", beside=[METRICS]),
    message:
        "Reading the load and extracting the peak of {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
    shell:
        f"python {SCRIPTS}/extract_peak.py"
        " --measurements {input.measurements:q} --pcp {input.pcp:q} --conditions {input.conditions:q} --required {params.required:q}"
        " --metrics {params.metrics:q} --min-samples {params.min_samples}"
        " --goodput {params.goodput:q}"
        " --requests {output.requests:q} --output {output.levels:q} {output.peak:q} {params.lenient}"


rule collect_metrics:
    input:
        levels=tables_of_cells("levels.csv"),
        peaks=tables_of_cells("peak.csv"),
        measurements=files_of_runs(RUN_POINTER),
        stored=files_of_runs(*RUN_FILES[:1]),
        conditions=files_of_runs("conditions.json"),
    output:
        runs=ALL_RUNS,
        complete_metrics=f"{ANALYSIS}/complete_metrics.csv",
        peak_throughput_all=report(
            f"{ANALYSIS}/peak_throughput_all.csv",
            category="Tables",
            labels={"table": "peak_throughput_all"},
        ),
        pcp_metrics_peak=f"{ANALYSIS}/pcp_metrics_peak.csv",
    log:
        f"{LOGS}/{{so_far}}collect_metrics.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        metrics=METRICS,
        library=code_behind("collect_metrics", beside=[METRICS]),
    message:
        "Collecting the metrics of all cells"
    script:
        "../scripts/collect_metrics.py"


rule compare_scenarios:
    input:
        complete=f"{ANALYSIS}/complete_metrics.csv",
        peaks=f"{ANALYSIS}/peak_throughput_all.csv",
        predicted=predicted_tables,
    output:
        comparison=report(
            f"{ANALYSIS}/comparison.csv",
            category="Tables",
            labels={"table": "comparison"},
        ),
        contrasts=f"{ANALYSIS}/contrasts.csv",
        peak_comparison=f"{ANALYSIS}/peak_comparison.csv",
        averages=f"{ANALYSIS}/averages.csv",
        checks=f"{ANALYSIS}/checks.csv",
    log:
        f"{LOGS}/{{so_far}}compare_scenarios.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        comparison=comparison_settings(RUNS),
        library=code_behind("compare_scenarios"),
    message:
        "Comparing the scenarios"
    script:
        "../scripts/compare_scenarios.py"


rule summarise_campaign:
    input:
        complete=f"{ANALYSIS}/complete_metrics.csv",
        peaks=f"{ANALYSIS}/peak_throughput_all.csv",
        comparison=f"{ANALYSIS}/comparison.csv",
        runs=ALL_RUNS,
    output:
        summary=report(
            f"{ANALYSIS}/summary.csv", category="Tables", labels={"table": "summary"}
        ),
        detailed=f"{ANALYSIS}/detailed.csv",
        pcp_summary_stats=f"{ANALYSIS}/pcp_summary_stats.csv",
        one_request=f"{ANALYSIS}/one_request.csv",
    log:
        f"{LOGS}/{{so_far}}summarise_campaign.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        plan=SETTINGS,
        library=code_behind("summarise_campaign"),
    message:
        "Summing up the campaign"
    script:
        "../scripts/summarise_campaign.py"


# Inputs of figures and report. By path, not as `rules.NAME.output`: with one such input Snakemake hashes each list of
# inputs once per file in it.
JUDGED = {
    "levels": f"{ANALYSIS}/complete_metrics.csv",
    "peaks": f"{ANALYSIS}/peak_throughput_all.csv",
    "comparison": f"{ANALYSIS}/comparison.csv",
}
# Files of plug-ins: made before the report, before the figures of a family, or by target `report` alone.
BESIDE_REPORT = []
BESIDE_FIGURES = {}
BESIDE_TARGET = []
