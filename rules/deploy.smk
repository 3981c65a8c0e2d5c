# For review only: exactly what would be deployed. Nothing depends on it.


rule preview_deployment:
    output:
        f"{CELL}/deployment.yaml",
    log:
        f"{LOGS}/preview_deployment/{{model}}/{{scenario}}/{{cpu_blocks}}.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        measurement=measurement_of,
        specification=specification_of,
    message:
        "Writing what would be deployed for {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
    script:
        "../scripts/preview_deployment.py"
