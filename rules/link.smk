# A pointer to a run that is there already: of several finished campaigns in one report, under the name that its scenario
# has there; and of the campaign itself, for a report over the runs that exist.


rule link_run:
    input:
        PLAN.compared_pointer,
    output:
        f"{CELL}/run-{{run}}/measurement.json",
    log:
        f"{LOGS}/{{so_far}}link_run/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log",
    wildcard_constraints:
        **({"run": "i[1-9][0-9]*"} if PLAN.config.compared else {"so_far": SO_FAR}),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        linked=PLAN.linked,
        scenario="{scenario}",
    message:
        "Taking {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}, as it was measured"
    script:
        "../scripts/link_run.py"
