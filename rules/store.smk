# The measurement store looked after. No inputs and no outputs: they run whenever they are asked for, and measure nothing.


rule verify:
    log:
        f"{LOGS}/verify.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    threads: workflow.resource_settings.cores or 1
    params:
        store=STORE,
        campaign=CAMPAIGN_FILE,
    message:
        "Checking every measurement of {params.store}"
    script:
        "../scripts/verify_store.py"


rule prune:
    log:
        f"{LOGS}/prune.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        store=STORE,
        campaign=CAMPAIGN_FILE,
        asked=config.get("prune"),
        days=config.get("prune_days", 0),
        also=config.get("prune_also", []),
    message:
        "Looking for what nothing refers to in {params.store}"
    script:
        "../scripts/prune_store.py"
