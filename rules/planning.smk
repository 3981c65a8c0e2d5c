# What would be measured and why, without measuring. No inputs and no outputs: it runs whenever it is asked for.


rule plan:
    log:
        f"{LOGS}/plan.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=CAMPAIGN_FILE,
        results=RESULTS,
        store=STORE,
        table=f"{LOGS}/plan.csv",
    message:
        "Planning campaign {CONFIG.campaign.name}"
    script:
        "../scripts/plan_campaign.py"
