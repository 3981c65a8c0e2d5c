# What is asked for by itself, before, during and after a campaign. No inputs and no outputs: these rules run whenever they
# are asked for, beside a campaign that is being measured, too, and they measure nothing. What plan, doctor, verify and prune
# say is in their logs, and printed at the end.


# What would be measured and why.
rule plan:
    log:
        local(f"{LOGS}/plan.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=VALUES,
        catalogues=CATALOGUES,
        results=RESULTS,
        store=STORE,
        table=f"{LOGS}/plan.csv",
    message:
        "Planning campaign {CAMPAIGN.name}"
    script:
        "../scripts/plan.py"


rule doctor:
    log:
        local(f"{LOGS}/doctor.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=VALUES,
        catalogues=CATALOGUES,
        asked=str(SOURCE if isinstance(SOURCE, Path) else next(iter(INVOCATION.configfiles), "CAMPAIGN.yaml")),
        store=STORE,
        server_environment=source(".server-venv"),
        at_once=MEASUREMENT_SLOTS,
    message:
        "Looking whether the campaign can run where it says"
    script:
        "../scripts/doctor.py"


rule teardown:
    log:
        f"{LOGS}/teardown.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=VALUES,
        catalogues=CATALOGUES,
    message:
        "Removing what is left of the campaign"
    script:
        "../scripts/teardown.py"


rule verify:
    log:
        local(f"{LOGS}/verify.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    threads: INVOCATION.cores
    params:
        store=STORE,
        campaign=SOURCE,
        catalogues=CATALOGUES,
    message:
        "Checking every measurement of {params.store}"
    script:
        "../scripts/verify.py"


rule prune:
    log:
        local(f"{LOGS}/prune.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        **{name: config.get(name) for name in PRUNING},
        store=STORE,
        campaign=SOURCE,
        catalogues=CATALOGUES,
    message:
        "Looking for what nothing refers to in {params.store}"
    script:
        "../scripts/prune.py"
