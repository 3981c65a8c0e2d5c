# What is asked for by itself, before, during and after a campaign. No inputs and no outputs: these rules run whenever they
# are asked for, beside a campaign that is being measured, too, and but for check they measure nothing. What plan, curve,
# doctor, check, verify, prune and history say is in their logs, and printed at the end.


# What would be measured and why.
rule plan:
    log:
        local(f"{LOGS}/plan.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=VALUES,
        catalogues=CATALOGUES,
        results=RESULTS,
        store=STORE,
        table=f"{LOGS}/plan.csv",
    message:
        "Planning campaign {CAMPAIGN.name}"
    script:
        "../scripts/plan.py"


# What caches of every size would serve of the load.
rule curve:
    log:
        local(f"{LOGS}/curve.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=VALUES,
        catalogues=CATALOGUES,
        store=STORE,
        table=f"{LOGS}/curve.csv",
        figure=f"{LOGS}/curve.png",
    message:
        "Computing what caches serve of the load of {CAMPAIGN.name}"
    script:
        "../scripts/curve.py"


rule doctor:
    log:
        local(f"{LOGS}/doctor.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=VALUES,
        catalogues=CATALOGUES,
        asked=" ".join(
            [
                str(next(iter(INVOCATION.configfiles), "CAMPAIGN.yaml" if GIVEN else SOURCE)),
                *([f"site={GIVEN[SITE]}"] if SITE in GIVEN else []),
            ]
        ),
        store=STORE,
        server_environment=source(".server-venv"),
        at_once=MEASUREMENT_SLOTS,
    message:
        "Looking whether the campaign can run where it says"
    script:
        "../scripts/doctor.py"


# One cell on the cluster: the one that asks for most, or that of --config cell=MODEL/SCENARIO/CPU_BLOCKS.
rule deploy_one:
    log:
        local(f"{LOGS}/deploy_one.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=VALUES,
        catalogues=CATALOGUES,
        cell=config.get("cell"),
        folder=f"{LOGS}/deploy_one",
        server_environment=source(".server-venv"),
    message:
        "Deploying one cell for a trial"
    script:
        "../scripts/deploy_one.py"


rule teardown:
    log:
        f"{LOGS}/teardown.log",
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=VALUES,
        catalogues=CATALOGUES,
    message:
        "Removing what is left of the campaign"
    script:
        "../scripts/teardown.py"


rule verify:
    log:
        local(f"{LOGS}/verify.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    threads: INVOCATION.cores
    params:
        store=STORE,
        campaign=SOURCE,
        catalogues=CATALOGUES,
    message:
        "Checking every measurement of {params.store}"
    script:
        "../scripts/verify.py"


rule prune:
    log:
        local(f"{LOGS}/prune.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        **{name: config.get(name) for name in PRUNING},
        store=STORE,
        campaign=SOURCE,
        catalogues=CATALOGUES,
    message:
        "Looking for what nothing refers to in {params.store}"
    script:
        "../scripts/prune.py"


CHECK_PLACES = {
    "script": source("scripts/benchmark.py"),
    "catalogues": CATALOGUES,
    "store": STORE,
    "server": source(".server-venv"),
}


# Two builds, measured block by block until it is clear: --config base=BUILD candidate=BUILD. It measures.
rule check:
    log:
        local(f"{LOGS}/check.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    threads: INVOCATION.cores
    resources:
        measurement_slot=1,
    params:
        asked=VALUES,
        options={name: config.get(name) for name in CHECKING},
        files=[str(file) for file in INVOCATION.configfiles],
        places=CHECK_PLACES,
    message:
        "Measuring two builds until it is clear"
    script:
        "../scripts/check.py"


# The first slower one of many builds: --config good=FOLDER@COMMIT bad=FOLDER@COMMIT. It measures.
rule bisect_builds:
    log:
        local(f"{LOGS}/bisect_builds.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    threads: INVOCATION.cores
    resources:
        measurement_slot=1,
    params:
        asked=VALUES,
        options={name: config.get(name) for name in BISECTING},
        files=[str(file) for file in INVOCATION.configfiles],
        places=CHECK_PLACES,
    message:
        "Measuring builds until the first slower one is found"
    script:
        "../scripts/check.py"


# The campaign's results beside earlier ones: --config history=FOLDER history_of=PROGRAM.
rule history:
    log:
        local(f"{LOGS}/history.log"),
    localrule: True
    conda:
        "../envs/workflow.yaml"
    params:
        campaign=CAMPAIGN.name,
        analysis=f"{RESULTS}/analysis",
        folders=history_folders(config),
        program=config.get("history_of"),
        output=f"{LOGS}/history",
    message:
        "Looking for changes from build to build"
    script:
        "../scripts/history.py"
