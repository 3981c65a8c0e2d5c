# Included where jobs share no folder with this machine but use a storage provider (as in profiles/kubernetes-executor):
# measurements are copied into the provider's bucket, and the report with its tables and figures is copied back.

# The files that are copied back, and the list of them.
READ = [
    f"{RESULTS}/REPORT.md",
    f"{RESULTS}/report.html",
    f"{RESULTS}/report.json",
    *(f"{RESULTS}/{name}" for name in APPENDICES),
    *(f"{RESULTS}/figures/{family}" for family in FIGURE_FAMILIES),
]
READ += expand(
    [*JUDGED.values(), *BESIDE_VERDICTS, *LINKED, *SUMMARIES, *BESIDE_REPORT], so_far=""
)
READ += [
    f"{folder}/{name}.csv" for folder in CELL_FOLDERS for name in ("levels", "peak")
]
BROUGHT = f"{RESULTS}/analysis/brought.txt"


rule share_run:
    input:
        local(f"{MEASURED_CELL}/run-{{run}}/measurement.json"),
    output:
        pointer=f"{MEASURED_CELL}/run-{{run}}/shared.json",
        description=f"{MEASURED_CELL}/run-{{run}}/stored/run.json",
        raw=directory(f"{MEASURED_CELL}/run-{{run}}/stored/raw"),
    log:
        local(f"{LOGS}/share_run/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    message:
        "Uploading {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    script:
        "../scripts/share_run.py"


rule bring_report:
    input:
        READ,
    output:
        local(BROUGHT),
    log:
        local(f"{LOGS}/bring_report.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        places=READ,
    message:
        "Copying the report of campaign {CAMPAIGN.name} to this machine"
    script:
        "../scripts/bring_report.py"
