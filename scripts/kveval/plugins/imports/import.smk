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
        "../../../../envs/workflow.yaml"
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
        "../../../import_run.py"
