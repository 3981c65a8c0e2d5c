# Converts recordings of system metrics to tables. This rule and extract_peak use `shell:`, because Snakemake reads the
# file of a `script:` once per job when it plans.


rule convert_pcp:
    input:
        measurement=f"{CELL}/run-{{run}}/{RUN_POINTER}",
        stored=[f"{CELL}/run-{{run}}/{name}" for name in RUN_FILES],
    output:
        table=f"{CELL}/run-{{run}}/pcp.parquet",
        conditions=f"{CELL}/run-{{run}}/conditions.json",
    log:
        f"{LOGS}/{{so_far}}convert_pcp/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=800,
        # PCP's own exporter is slower; by how much was not measured.
        runtime=10 if CAMPAIGN.converter == "kveval" else 60,
    params:
        converter=CAMPAIGN.converter,
        library=code_behind("convert_pcp"),
    message:
        "Converting the PCP archive of {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    shell:
        f"python {SCRIPTS}/convert_pcp.py"
        " {input.measurement:q} --converter {params.converter} --output {output.table:q} --conditions {output.conditions:q}"
