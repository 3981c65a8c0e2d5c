# Several finished campaigns in one report: a pointer to each of their runs, under the name that its scenario has here.


rule link_run:
    input:
        linked_pointer,
    output:
        f"{CELL}/run-{{run}}/measurement.json",
    log:
        f"{LOGS}/link_run/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log",
    wildcard_constraints:
        run="i[1-9][0-9]*",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        scenario="{scenario}",
    message:
        "Taking {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}, from its campaign"
    script:
        "../scripts/link_run.py"


# A campaign imports or compares.
if CONFIG.compared:

    ruleorder: link_run > import_run

else:

    ruleorder: import_run > link_run
