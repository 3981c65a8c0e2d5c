# Pictures and sentences.


rule plot_figure:
    input:
        levels=rules.collect_metrics.output.complete_metrics,
        peaks=rules.collect_metrics.output.peak_throughput_all,
        comparison=rules.compare_scenarios.output[0],
        measurements=POINTERS,
        library=library("figures", "figure_names", "plotting", "numerals", "style.mplstyle", "report", "report_tables"),
    output:
        png=f"{RESULTS}/figures/{{figure}}.png",
        svg=f"{RESULTS}/figures/{{figure}}.svg",
    log:
        f"{LOGS}/plot_figure/{{figure}}.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        plan=PLAN,
    message:
        "Drawing {wildcards.figure}"
    script:
        "../scripts/plot_figure.py"


rule write_report:
    input:
        levels=rules.collect_metrics.output.complete_metrics,
        peaks=rules.collect_metrics.output.peak_throughput_all,
        comparison=rules.compare_scenarios.output[0],
        measurements=POINTERS,
        figures=FIGURES,
        metrics="config/metrics.yaml",
        library=library("report", "report_tables", "numerals", "runfile", "figures", "stats", "templates/REPORT.md.j2"),
    output:
        f"{RESULTS}/REPORT.md",
    log:
        f"{LOGS}/write_report.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        plan=PLAN,
    message:
        "Writing {output}"
    script:
        "../scripts/write_report.py"


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
        metrics="config/metrics.yaml",
        version=IMPORTS.runs[0].vllm if IMPORTS.runs else CONFIG.campaign.server.vllm,
        comparison=COMPARISON,
    message:
        "Reporting what has been measured so far"
    script:
        "../scripts/report_so_far.py"
