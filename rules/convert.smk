# What was measured, in tables: one row a level, one row a request, and the system's metrics.


rule convert_load:
    input:
        measurement=rules.benchmark.output[0],
    output:
        levels=f"{CELL}/run-{{run}}/levels.parquet",
        requests=f"{CELL}/run-{{run}}/requests.parquet",
    log:
        f"{LOGS}/convert_load/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        required=required_counters,
        library=code_of(
            "guidellm",
            "levels",
            "aggregates",
            "delivery",
            "survival",
            "intervals",
            "configuration",
            "checks",
            "checks_import",
            "checks_run",
            "runfile",
        ),
    message:
        "Reading the load of {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    script:
        "../scripts/convert_load.py"


rule convert_pcp:
    input:
        measurement=rules.benchmark.output[0],
    output:
        f"{CELL}/run-{{run}}/pcp.parquet",
    log:
        f"{LOGS}/convert_pcp/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=1000,
        runtime=30,
    params:
        converter=CONFIG.campaign.converter,
        library=code_of("pcparchive", "recorded"),
    message:
        "Converting the PCP archive of {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    script:
        "../scripts/convert_pcp.py"
