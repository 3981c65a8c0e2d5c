# Targets of their own, for use before, during and after a campaign. Without inputs and outputs, they run whenever they
# are requested, even while a campaign is being measured; only check and bisect_builds measure. Their text is in their
# logs and printed at the end.


# Prints what would be measured and why.
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
        taken=external_runs_summary(RUNS),
        table=f"{LOGS}/plan.csv",
    message:
        "Planning campaign {CAMPAIGN.name}"
    script:
        "../scripts/plan.py"


# Computes the share of the load that caches of every size would serve.
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
        "Computing the share of the load of {CAMPAIGN.name} that caches of every size serve"
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
                str(
                    next(
                        iter(INVOCATION.configfiles),
                        "CAMPAIGN.yaml" if GIVEN else SOURCE,
                    )
                ),
                *([f"site={GIVEN[SITE]}"] if SITE in GIVEN else []),
            ]
        ),
        store=STORE,
        server_environment=source(".server-venv"),
        at_once=MEASUREMENT_SLOTS,
    message:
        "Checking whether the campaign can run on its engine"
    script:
        "../scripts/doctor.py"


# Deploys one cell on the cluster: the one that requests most, or that of --config cell=MODEL/SCENARIO/CPU_BLOCKS.
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
        "Deploying one cell as a test"
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
        "Removing what the campaign left behind"
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
        "Checking every measurement in {params.store}"
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
        "Looking for unreferenced entries in {params.store}"
    script:
        "../scripts/prune.py"


# What both targets that compare builds are asked, and the paths that they need.
CHECKED = {
    "asked": VALUES,
    "files": [str(file) for file in INVOCATION.configfiles],
    "places": {
        "script": source("scripts/benchmark.py"),
        "catalogues": CATALOGUES,
        "store": STORE,
        "server": source(".server-venv"),
    },
}


# Compares two builds, block by block until the verdict is clear: --config base=BUILD candidate=BUILD. It measures.
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
        **CHECKED,
        options={name: config.get(name) for name in CHECKING},
    message:
        "Measuring two builds until the verdict is clear"
    script:
        "../scripts/check.py"


# Finds the first slower one of many builds: --config good=FOLDER@COMMIT bad=FOLDER@COMMIT. It measures.
use rule check as bisect_builds with:
    log:
        local(f"{LOGS}/bisect_builds.log"),
    params:
        **CHECKED,
        options={name: config.get(name) for name in BISECTING},
    message:
        "Measuring builds until the first slower one is found"


# Adds the campaign's results to the history and shows changes: --config history=FOLDER history_of=PROGRAM.
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
