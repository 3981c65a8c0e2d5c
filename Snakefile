from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "rules/common.smk"
include: "rules/deploy.smk"
include: "rules/benchmark.smk"
include: "rules/pilot.smk"
include: "rules/importing.smk"
include: "rules/comparing.smk"
include: "rules/convert.smk"
include: "rules/analysis.smk"
include: "rules/publish.smk"
include: "rules/store.smk"
include: "rules/planning.smk"
include: "rules/cluster.smk"


if not SHARED_FOLDER:

    include: "rules/sharing.smk"


rule report:
    default_target: True
    input:
        f"{RESULTS}/REPORT.md" if SHARED_FOLDER else local(BROUGHT),
        [f"{RESULTS}/analysis/imported.csv"] if CONFIG.imports else [],
        local(BENCHMARK_REPORTS),
    localrule: True


rule peaks:
    input:
        expand("{cell}/peak.csv", cell=CELL_FOLDERS),
    localrule: True


rule figures:
    input:
        FIGURES,
    localrule: True


rule preview:
    input:
        expand("{cell}/deployment.yaml", cell=CELL_FOLDERS),
    localrule: True
