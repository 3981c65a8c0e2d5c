# Before a campaign and after it. No inputs and no outputs: they run whenever they are asked for, and measure nothing.


# How many measurements snakemake would have at once: a number, or Snakemake's object of one.
SLOTS = workflow.global_resources["measurement_slot"]


rule doctor:
    log:
        f"{LOGS}/doctor.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=CAMPAIGN_FILE,
        asked=str(SOURCE) if isinstance(SOURCE, Path) else CAMPAIGN_FILE,
        store=STORE,
        server_environment=SERVER_ENVIRONMENT,
        at_once=getattr(SLOTS, "value", SLOTS),
    message:
        "Looking whether the campaign can run where it says"
    script:
        "../scripts/run_doctor.py"


rule teardown:
    log:
        f"{LOGS}/teardown.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=CAMPAIGN_FILE,
    message:
        "Removing what is left of the campaign"
    script:
        "../scripts/teardown_cluster.py"
