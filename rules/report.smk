# Figures and the report.

# Further tables that compare_scenarios writes.
BESIDE_VERDICTS = [
    f"{ANALYSIS}/{name}.csv"
    for name in ("contrasts", "averages", "checks", "peak_comparison")
]
SUMMARIES = [
    f"{ANALYSIS}/{name}.csv"
    for name in (
        "summary",
        "detailed",
        "pcp_summary_stats",
        "one_request",
    )
]
# A table that the report links to without reading it.
LINKED = [f"{ANALYSIS}/pcp_metrics_peak.csv"]


# Of families whose figures take longer, or less long, than those of most.
PRIORITIES = {"recordings": 2, "effects": 0, "system": 0}


# One job per family of figures: starting Python and the plotting library takes longer than drawing. The output is a
# folder, because which figures have data is known only when they are drawn.
for family in FAMILIES:

    rule:
        name:
            f"plot_{family}"
        input:
            **JUDGED,
            runs=ALL_RUNS,
            beside=BESIDE_VERDICTS,
            of_plugins=BESIDE_FIGURES.get(family, []),
            recordings=files_of_runs(
                *(["pcp.parquet"] if family == "recordings" else [])
            ),
            cells=peaks_so_far,
        output:
            report(directory(f"{FIGURES}/{family}"), **captioned(MODELS, family)),
        log:
            f"{LOGS}/{{so_far}}plot_{family}.log",
        # The longest first, so that the last ones end at about the same time.
        priority: PRIORITIES.get(family, 1)
        conda:
            "../envs/workflow.yaml"
        resources:
            mem_mb=MB_FOR_ALL,
            runtime=MINUTES_FOR_ALL,
        params:
            plan=SETTINGS,
            metrics=METRICS,
            captions=captions_of(MODELS, family),
            library=code_behind(
                "plot_family", f"kveval.report.figures.{family}", beside=[METRICS]
            ),
        message:
            f"Drawing the figures about {family}"
        script:
            "../scripts/plot_family.py"


# A single figure, requested by its name.
rule copy_figure:
    input:
        folder_of_figure,
    output:
        f"{FIGURES}/{{figure}}.{{kind}}",
    log:
        f"{LOGS}/{{so_far}}copy_figure/{{figure}}.{{kind}}.log",
    wildcard_constraints:
        figure="|".join(map(re.escape, figure_names(MODELS))),
        kind="png|svg",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    message:
        "Copying {output}"
    script:
        "../scripts/copy_figure.py"


rule write_report:
    input:
        **JUDGED,
        due=due_tables,
        runs=ALL_RUNS,
        beside=BESIDE_VERDICTS,
        summaries=SUMMARIES,
        linked=LINKED,
        of_plugins=BESIDE_REPORT,
        figures=[f"{FIGURES}/{family}" for family in FIGURE_FAMILIES],
        pilots=pilots_for_report,
        cells=peaks_so_far,
    output:
        report=REPORT,
        page=report(
            f"{RESULTS}/{{so_far}}report.html",
            category="Report",
            labels={"file": "report.html"},
        ),
        numbers=f"{RESULTS}/{{so_far}}report.json",
        appendices=[f"{RESULTS}/{{so_far}}{name}" for name in APPENDICES],
    log:
        f"{LOGS}/{{so_far}}write_report.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        plan=SETTINGS,
        failures=failures_so_far,
        pilots=pilots_so_far,
        metrics=METRICS,
        measures=not RUNS.elsewhere.runs,
        # Titles and captions are read from the modules that draw.
        library=code_behind(
            "write_report",
            *[f"kveval.report.figures.{family}" for family in FAMILIES],
            beside=[METRICS, *sections_beside()],
        ),
    message:
        "Writing {output.report}"
    script:
        "../scripts/write_report.py"
