# One job per run of a cell. Everything that defines the measurement is in params, so that its change, and nothing else,
# plans a rerun; and a rerun adopts the stored measurement if there is one. The script is ancient(): touching it reruns
# nothing. It renders the specification anew and refuses to measure when that has not the planned id.

# As many measurements at once as a profile or --resources says; where none does, one, or on a cluster
# the campaign's slots. Not in profiles/default, whose keys would win over those of --profile.
if "measurement_slot" not in workflow.global_resources:
    workflow.register_resource("measurement_slot", CONFIG.campaign.cluster.slots if CONFIG.campaign.cluster else 1)


rule benchmark:
    input:
        script=local(ancient("scripts/benchmark.py")),
        levels=levels_file if SEARCHES else [],
    output:
        local(f"{CELL}/run-{{run}}/measurement.json"),
    log:
        local(f"{LOGS}/benchmark/{{model}}/{{scenario}}/{{cpu_blocks}}/run-{{run}}.log"),
    wildcard_constraints:
        run="[1-9][0-9]*",
    priority: block_priority
    # Beside snakemake itself, from where the engine is reached, unless a profile says where else (set-resources).
    localrule: "benchmark" not in workflow.resource_settings.overwrite_resources
    conda:
        "../envs/workflow.yaml"
    # On this host nothing may run beside it; on a cluster it only asks and waits.
    threads: (workflow.resource_settings.cores or 1) if CONFIG.campaign.engine == "local" else 1
    resources:
        measurement_slot=1,
    params:
        **SEARCHED_PARAMS,
        measurement=measurement_of if SEARCHES else preview_id_of,
        run="{run}",
    message:
        "Measuring {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}, run {wildcards.run}"
    shell:
        f"python {{input.script}} --campaign {shlex.quote(CAMPAIGN_FILE)} --measurement {{params.measurement}}"
        f"{SEARCHED_OPTION} --cell {{wildcards.model}}/{{wildcards.scenario}}/{{wildcards.cpu_blocks}}"
        f" --run {{params.run}} --store {STORE} --server-environment {SERVER_ENVIRONMENT}"
        f" --campaign-runs {shlex.quote(CAMPAIGN_RUNS)} --output {{output:q}} --log {{log:q}}"
