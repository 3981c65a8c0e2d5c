# Pointers to existing runs: to those of several finished campaigns for one report, under the scenario names used there;
# and to the campaign's own, for a report on the runs that exist.


rule link_run:
    input:
        lambda wildcards: run_of(wildcards).source.inputs,
    output:
        f"{CELL}/run-{{run}}/measurement.json",
    log:
        f"{LOGS}/{{so_far}}link_run/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log",
    wildcard_constraints:
        **({"run": "i[1-9][0-9]*"} if CONFIG.compared else {"so_far": SO_FAR}),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        pointer=lambda wildcards: run_of(wildcards).source.pointer,
        content=lambda wildcards: run_of(wildcards).source.content,
        scenario="{scenario}",
    message:
        "Linking to the existing {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    script:
        "../scripts/link_run.py"
