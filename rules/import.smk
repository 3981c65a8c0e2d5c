# Results that were measured elsewhere. Nothing is deployed: the measurement store refers to a run's files, or holds
# copies of them, and all later rules treat the run like any other.


rule import_run:
    output:
        f"{MEASURED_CELL}/run-{{run}}/measurement.json",
    log:
        f"{LOGS}/import_run/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log",
    wildcard_constraints:
        run="i[1-9][0-9]*",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=800,
        runtime=30,
    params:
        plan=lambda wildcards: run_of(wildcards).source.plan,
        store=STORE,
        library=code_behind("import_run"),
    message:
        "Importing {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    script:
        "../scripts/import_run.py"


rule list_imports:
    input:
        measurements=[
            f"{RESULTS}/{cell.path}/{run}/{RUN_POINTER}" for cell, run in RUNS.planned
        ],
    output:
        f"{RESULTS}/analysis/imported.csv",
    log:
        f"{LOGS}/list_imports.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        campaign=campaign_of_jobs,
        # So that a change of the campaign also reruns this rule.
        digest=CAMPAIGN_FILE.stem,
        catalogues=CATALOGUES,
        index=IMPORT_INDEX,
        # Identifies all results that were found, so that a change of those without a run also reruns this rule.
        found=RUNS.elsewhere.stamp,
        library=code_behind("list_imports"),
    message:
        "Listing what was imported"
    script:
        "../scripts/list_imports.py"
