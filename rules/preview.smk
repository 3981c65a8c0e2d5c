# For review only: exactly what would be deployed. Nothing depends on it.


rule preview_deployment:
    output:
        f"{MEASURED_CELL}/deployment.yaml",
    log:
        f"{LOGS}/preview_deployment/{{model}}/{{scenario}}/{{cpu_blocks}}.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        measurement=PLAN.measurement,
        specification=PLAN.specification,
        # A function, as Snakemake looks for no wildcards in its result: addresses of a site contain {port} and {host}.
        site=lambda wildcards: (
            CAMPAIGN.cluster.model_dump_json(by_alias=True) if CAMPAIGN.cluster else ""
        ),
        campaign=CAMPAIGN.name,
    message:
        "Writing what would be deployed for {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
    script:
        "../scripts/preview_deployment.py"
