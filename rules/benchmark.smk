# One job per run of a cell. Everything that defines the measurement is in params, so that its change, and nothing else,
# plans a rerun; and a rerun adopts the stored measurement if there is one. The files that the job reads are sources and
# ancient(): a touched script or a reworded catalogue reruns nothing. It renders the specification anew and refuses to
# measure when that has not the planned id.

READ_ANEW = {"script": local(ancient(source("scripts/benchmark.py"))), "catalogues": local(ancient(CATALOGUES))}
SEARCHES = PLAN.config.searches
# Snakemake remembers no parameter that is a function of inputs. So a campaign with one cell more is no reason to measure
# the others again; and where a pilot searches the levels, and the id is such a parameter, `definition` plans a rerun.
CAMPAIGN_JSON = json.dumps(VALUES, default=str)
SEARCHED_PARAMS = {
    "levels": PLAN.levels_option,
    "definition": PLAN.measurement,
}
SEARCHED_OPTION = " {params.levels}" if SEARCHES else ""


rule benchmark:
    input:
        **READ_ANEW,
        levels=(lambda wildcards: local(PLAN.pilot_levels(wildcards))) if SEARCHES else [],
    output:
        local(f"{MEASURED_CELL}/run-{{run}}/measurement.json"),
    log:
        local(f"{LOGS}/benchmark/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log"),
    wildcard_constraints:
        run="[1-9][0-9]*",
    priority: PLAN.block_priority
    # Beside snakemake itself, from where the engine is reached, unless a profile says where else (set-resources).
    localrule: "benchmark" not in INVOCATION.sent
    conda:
        "../envs/workflow.yaml"
    # On this host nothing may run beside it; on a cluster it only asks and waits.
    threads: INVOCATION.cores if CAMPAIGN.engine == "local" else 1
    resources:
        measurement_slot=1,
    params:
        **(SEARCHED_PARAMS if SEARCHES else {}),
        campaign=lambda wildcards, input: CAMPAIGN_JSON,
        measurement=PLAN.searched_measurement if SEARCHES else PLAN.measurement,
        run="{run}",
    message:
        "Measuring {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    shell:
        "python {input.script:q} --campaign {params.campaign:q} --catalogues {input.catalogues:q}"
        f" --measurement {{params.measurement}}{SEARCHED_OPTION}"
        " --cell {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks} --run {params.run}"
        f" --store {STORE} --server-environment {SERVER_ENVIRONMENT} --output {{output:q}} --log {{log:q}}"
