# Included where the jobs share no folder with this machine (a storage provider, as profiles/kubernetes-executor has one):
# measurements go into the provider's bucket, and what people read comes back.

# What people read, and the list of it.
READ = [
    f"{RESULTS}/REPORT.md",
    f"{RESULTS}/report.html",
    f"{RESULTS}/report.json",
    *(f"{RESULTS}/{name}" for name in APPENDICES),
    *(f"{RESULTS}/figures/{family}" for family in PLAN.figure_families),
]
READ += expand([*JUDGED.values(), *BESIDE_VERDICTS, *LINKED, *SUMMARIES], so_far="")
READ += [f"{folder}/{name}.csv" for folder in PLAN.cell_folders for name in ("levels", "peak")]
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
        "Sharing {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}, with the jobs elsewhere"
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
        "Bringing the report of campaign {CAMPAIGN.name} here"
    script:
        "../scripts/bring_report.py"
