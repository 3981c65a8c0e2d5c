# One job per run of a cell. All that defines the measurement is in params, so that a change of it, and nothing else,
# triggers a rerun; a rerun adopts the stored measurement if there is one. The files that the job reads are ancient()
# inputs: a touched script or a reworded catalogue reruns nothing. The job renders the specification again and refuses
# to measure if its id is not the planned one.

READ_ANEW = {
    "script": local(ancient(source("scripts/benchmark.py"))),
    "catalogues": local(ancient(CATALOGUES)),
}
# Where a pilot searches the levels. The text of the command stays as it is: where it is another than Snakemake has
# recorded, all runs are planned again, to be adopted.
SEARCHES = CONFIG.searches
LEVELS_OPTION = " {params.levels}" if SEARCHES else ""


rule benchmark:
    input:
        **READ_ANEW,
        levels=(
            local(lambda wildcards: run_of(wildcards).source.levels)
            if SEARCHES
            else []
        ),
    output:
        local(f"{MEASURED_CELL}/run-{{run}}/measurement.json"),
    log:
        local(f"{LOGS}/benchmark/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log"),
    wildcard_constraints:
        run="[1-9][0-9]*",
    priority: lambda wildcards: run_of(wildcards).priority
    # Runs on snakemake's own host, which can reach the engine, unless a profile's set-resources sends it elsewhere.
    localrule: "benchmark" not in INVOCATION.sent
    conda:
        "../envs/workflow.yaml"
    # With the local engine no other job may run meanwhile; on a cluster the job only sends requests and waits.
    threads: INVOCATION.cores if CAMPAIGN.engine == "local" else 1
    resources:
        measurement_slot=1,
    params:
        **({"levels": levels_option} if SEARCHES else {}),
        campaign=campaign_of_jobs,
        measurement=lambda wildcards: run_of(wildcards).id,
        run="{run}",
        doing=doing("Measuring"),
    message:
        "{params.doing} {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    shell:
        "python {input.script:q} --campaign {params.campaign:q} --catalogues {input.catalogues:q}"
        f" --measurement {{params.measurement}}{LEVELS_OPTION}"
        " --cell {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks} --run {params.run}"
        f" --store {STORE} --server-environment {SERVER_ENVIRONMENT} --output {{output:q}} --log {{log:q}}"
