# For review only: exactly what would be deployed. Nothing depends on it.

# By which a change of a site, which is no part of what is measured, writes its documents anew.
SITE_DIGEST = (
    content_hash(CAMPAIGN.cluster.model_dump(mode="json")) if CAMPAIGN.cluster else ""
)


rule preview_deployment:
    output:
        f"{MEASURED_CELL}/deployment.yaml",
    log:
        f"{LOGS}/preview_deployment/{{model}}/{{scenario}}/{{cpu_blocks}}.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=campaign_of_jobs,
        catalogues=CATALOGUES,
        cell="{model}/{scenario}/{cpu_blocks}",
        measurement=lambda wildcards: run_of(wildcards).id,
        site=SITE_DIGEST,
    message:
        "Writing what would be deployed for {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
    script:
        "../scripts/preview_deployment.py"
