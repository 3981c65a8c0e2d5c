# Pictures and sentences.


# One job per family of figures: starting Python and the plotting library takes longer than drawing.
for family in FAMILIES:

    rule:
        name:
            f"plot_{family}"
        input:
            levels=COMPLETE,
            peaks=PEAKS,
            comparison=VERDICTS,
            runs=ALL_RUNS,
            beside=BESIDE_VERDICTS,
            recordings=[str(Path(pointer).with_name("pcp.parquet")) for pointer in POINTERS * (family == "recordings")],
        output:
            png=[captioned(figure) for figure in figures_of(MODELS, family)],
            svg=[f"{RESULTS}/figures/{figure.name}.svg" for figure in figures_of(MODELS, family)],
            notes=f"{RESULTS}/figures/{family}.json",
        log:
            f"{LOGS}/plot_{family}.log",
        conda:
            "../envs/workflow.yaml"
        resources:
            mem_mb=MB_FOR_ALL,
            runtime=MINUTES_FOR_ALL,
        params:
            plan=PLAN,
            metrics=METRICS,
            library=code_behind("plot_figures", f"kveval.report.figures.{family}", beside=[METRICS]),
        message:
            f"Drawing the figures about {family}"
        script:
            "../scripts/plot_figures.py"


rule write_report:
    input:
        levels=COMPLETE,
        peaks=PEAKS,
        comparison=VERDICTS,
        runs=ALL_RUNS,
        beside=BESIDE_VERDICTS,
        summaries=SUMMARIES,
        linked=LINKED,
        figures=FIGURES,
        notes=[f"{RESULTS}/figures/{family}.json" for family in FAMILIES],
        pilots=local(PILOTS),
    output:
        report=f"{RESULTS}/REPORT.md",
        numbers=f"{RESULTS}/report.json",
    log:
        f"{LOGS}/write_report.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        plan=PLAN,
        metrics=METRICS,
        library=code_behind("write_report", beside=[METRICS]),
    message:
        "Writing {output.report}"
    script:
        "../scripts/write_report.py"


# For tools that read llm-d-benchmark's reports: the peak of every cell.
rule export_benchmark_reports:
    input:
        levels=COMPLETE,
        peaks=PEAKS,
        comparison=VERDICTS,
        runs=ALL_RUNS,
        beside=BESIDE_VERDICTS,
    output:
        local(BENCHMARK_REPORTS),
    log:
        local(f"{LOGS}/export_benchmark_reports.log"),
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        plan=PLAN,
        library=code_behind("export_benchmark_reports"),
    message:
        "Exporting the peaks as benchmark reports"
    script:
        "../scripts/export_benchmark_reports.py"


# Over whatever has been measured: with keep-going one failed job keeps `report` from running. No inputs and no outputs, so
# that it runs whenever it is asked for and never starts a measurement.
rule report_so_far:
    log:
        f"{LOGS}/report_so_far.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        plan=PLAN,
        results=RESULTS,
        logs=LOGS,
        metrics=METRICS,
        version=IMPORTS.runs[0].vllm if IMPORTS.runs else CONFIG.campaign.server.vllm,
        min_samples=CONFIG.campaign.min_samples,
        comparison=COMPARISON,
    message:
        "Reporting what has been measured so far"
    script:
        "../scripts/report_so_far.py"
