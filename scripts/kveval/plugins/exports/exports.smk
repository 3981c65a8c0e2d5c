# The peak of every cell for tools that read llm-d-benchmark's reports.
# The output is a list of the exported files, not the files: for each output Snakemake stores a record of all inputs.
BENCHMARK_REPORTS = f"{RESULTS}/analysis/benchmark_reports.txt"


rule export_benchmark_reports:
    input:
        levels=JUDGED["levels"].format(so_far=""),
        peaks=JUDGED["peaks"].format(so_far=""),
        runs=ALL_RUNS.format(so_far=""),
    output:
        local(BENCHMARK_REPORTS),
    log:
        local(f"{LOGS}/export_benchmark_reports.log"),
    conda:
        "../../../../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        campaign=CAMPAIGN.name,
        library=code_behind("kveval/plugins/exports/llmd"),
    message:
        "Exporting the peaks as benchmark reports"
    shell:
        f"{MODULE} kveval.plugins.exports.llmd {{params.campaign:q}} {{input:q}} {{output:q}}"


BESIDE_TARGET.append(local(BENCHMARK_REPORTS))
