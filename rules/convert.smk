# The recordings of the system's metrics, as tables. Through the shell, here and for cells: a plan reads every `script:` once a
# job.


rule convert_pcp:
    input:
        measurement=f"{CELL}/run-{{run}}/{RUN}",
        stored=[f"{CELL}/run-{{run}}/{name}" for name in RUN_FILES],
    output:
        f"{CELL}/run-{{run}}/pcp.parquet",
    log:
        f"{LOGS}/{{so_far}}convert_pcp/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log",
    conda:
        "../envs/workflow.yaml"
    resources:
        mem_mb=800,
        # PCP's own exporter is slower, how much has not been measured.
        runtime=10 if CAMPAIGN.converter == "kveval" else 60,
    params:
        converter=CAMPAIGN.converter,
        library=code_behind("convert_pcp"),
    message:
        "Converting the PCP archive of {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    shell:
        f"python {SCRIPTS}/convert_pcp.py" " {input.measurement:q} --converter {params.converter} --output {output:q}"
