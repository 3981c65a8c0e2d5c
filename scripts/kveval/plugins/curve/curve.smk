# Predictions: the hits that a cell's caches should serve, where hits are lost, and what tiers should gain.


rule predict_hits:
    input:
        measurements=runs_of_cell,
        stored=files_of_cell(*RUN_FILES),
        requests=f"{CELL}/requests.parquet",
        conditions=files_of_cell("conditions.json"),
    output:
        f"{CELL}/predicted_hits.csv",
    log:
        f"{LOGS}/{{so_far}}predict_hits/{{model}}/{{scenario}}/{{cpu_blocks}}.log",
    conda:
        "../../../../envs/workflow.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        library=code_behind("predict_hits"),
    message:
        "Predicting the hits of {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
    shell:
        f"python {SCRIPTS}/predict_hits.py"
        " --measurements {input.measurements:q} --conditions {input.conditions:q} --requests {input.requests:q} --output {output:q}"


rule predict_campaign:
    input:
        complete=f"{ANALYSIS}/complete_metrics.csv",
        peaks=f"{ANALYSIS}/peak_throughput_all.csv",
        comparison=f"{ANALYSIS}/comparison.csv",
        runs=ALL_RUNS,
        requests=tables_of_cells("requests.parquet"),
        hits=tables_of_cells("predicted_hits.csv"),
    output:
        predicted_hits=f"{ANALYSIS}/predicted_hits.csv",
        hits=f"{ANALYSIS}/hits.csv",
        waterfall=f"{ANALYSIS}/waterfall.csv",
        predicted=f"{ANALYSIS}/predicted.csv",
    log:
        f"{LOGS}/{{so_far}}predict_campaign.log",
    conda:
        "../../../../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        plan=SETTINGS,
        library=code_behind("predict_campaign"),
    message:
        "Predicting what tiers gain"
    script:
        "../../../predict_campaign.py"


PREDICTIONS = [
    f"{ANALYSIS}/{name}.csv"
    for name in ("predicted_hits", "hits", "waterfall", "predicted")
]
BESIDE_REPORT.extend(PREDICTIONS)
BESIDE_FIGURES["caches"] = PREDICTIONS
