# From the tables of single runs to the figures people ask for: peaks of cells, tables over cells, comparisons.


rule extract_peak:
    input:
        levels=of_runs("levels.parquet"),
        pcp=of_runs("pcp.parquet"),
    output:
        levels=f"{CELL}/levels.csv",
        peak=f"{CELL}/peak.csv",
    log:
        f"{LOGS}/extract_peak/{{model}}/{{scenario}}/{{cpu_blocks}}.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        version=vllm_of if IMPORTS.runs else CONFIG.campaign.server.vllm,
        min_samples=CONFIG.campaign.min_samples,
        library=code_behind("extract_peak", beside=[METRICS]),
    message:
        "Extracting the peak of {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
    shell:
        "python scripts/extract_peak.py --levels {input.levels:q} --pcp {input.pcp:q}"
        f" --metrics {METRICS} --vllm {{params.version:q}} --min-samples {{params.min_samples}}"
        " --output {output.levels:q} {output.peak:q}"


rule collect_metrics:
    input:
        levels=expand("{cell}/levels.csv", cell=CELL_FOLDERS),
        peaks=expand("{cell}/peak.csv", cell=CELL_FOLDERS),
        measurements=RUNS,
        stored=RUN_DESCRIPTIONS,
    output:
        runs=ALL_RUNS,
        complete_metrics=COMPLETE,
        peak_throughput_all=PEAKS,
        pcp_metrics_peak=f"{RESULTS}/analysis/pcp_metrics_peak.csv",
    log:
        f"{LOGS}/collect_metrics.log",
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
        complete=COMPLETE,
        peaks=PEAKS,
    output:
        comparison=VERDICTS,
        contrasts=f"{RESULTS}/analysis/contrasts.csv",
        peak_comparison=f"{RESULTS}/analysis/peak_comparison.csv",
        averages=f"{RESULTS}/analysis/averages.csv",
        checks=f"{RESULTS}/analysis/checks.csv",
    log:
        f"{LOGS}/compare_scenarios.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        comparison=COMPARISON,
        library=code_behind("compare_scenarios"),
    message:
        "Comparing the scenarios"
    script:
        "../scripts/compare_scenarios.py"


rule summarise_campaign:
    input:
        complete=COMPLETE,
        peaks=PEAKS,
        comparison=VERDICTS,
    output:
        summary=SUMMARIES[0],
        detailed=SUMMARIES[1],
        pcp_summary_stats=SUMMARIES[2],
    log:
        f"{LOGS}/summarise_campaign.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        plan=PLAN,
        library=code_behind("summarise_campaign"),
    message:
        "Summing up the campaign"
    script:
        "../scripts/summarise_campaign.py"
