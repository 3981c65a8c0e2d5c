# For workloads whose levels are searched: first one search for the baseline's peak, then every arm at the levels found.


use rule benchmark as pilot with:
    input:
        **READ_ANEW,
        levels=[],
        due=due_pilot,
    output:
        local(f"{MEASURED_CELL}/pilot/measurement.json"),
    log:
        local(f"{LOGS}/benchmark/{{model}}/{{scenario}}/{{cpu_blocks}}/pilot.log"),
    priority: lambda wildcards: run_of(wildcards, PILOT).priority
    params:
        campaign=campaign_of_jobs,
        measurement=lambda wildcards: run_of(wildcards, PILOT).id,
        run=1,
        levels="--pilot",
        doing=doing("Searching", PILOT),
    message:
        "{params.doing} the levels around the peak of {wildcards.model}/{wildcards.scenario}"


# With `shell:`, as Snakemake runs a `script:` again when its file is touched, and then every run that waits for this.
rule freeze_levels:
    input:
        pointer=local(f"{MEASURED_CELL}/pilot/measurement.json"),
    output:
        local(f"{MEASURED_CELL}/pilot/levels.json"),
    log:
        local(f"{LOGS}/freeze_levels/{{model}}/{{scenario}}/{{cpu_blocks}}.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        library=code_behind("freeze_levels"),
    message:
        "Freezing the levels of {wildcards.model}/{wildcards.scenario}"
    shell:
        f"python {SCRIPTS}/freeze_levels.py {{input.pointer:q}} {{output:q}}"
