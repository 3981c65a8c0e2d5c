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
        library=code_behind("kveval/plugins/curve/predict_hits"),
    message:
        "Predicting the hits of {wildcards.model}/{wildcards.scenario}/{wildcards.cpu_blocks}"
    shell:
        f"{MODULE} kveval.plugins.curve.predict_hits"
        " --measurements {input.measurements:q} --conditions {input.conditions:q} --requests {input.requests:q} --output {output:q}"


PREDICTIONS = [
    f"{ANALYSIS}/{name}.csv"
    for name in ("predicted_hits", "hits", "waterfall", "predicted")
]


rule predict_campaign:
    input:
        judged=[*JUDGED.values()],
        runs=ALL_RUNS,
        requests=tables_of_cells("requests.parquet"),
        hits=tables_of_cells("predicted_hits.csv"),
    output:
        PREDICTIONS,
    log:
        f"{LOGS}/{{so_far}}predict_campaign.log",
    conda:
        "../../../../envs/workflow.yaml"
    resources:
        mem_mb=MB_FOR_ALL,
        runtime=MINUTES_FOR_ALL,
    params:
        baselines={name: arm["baseline"] for name, arm in SETTINGS["scenarios"].items()},
        library=code_behind("predict_campaign"),
    message:
        "Predicting what tiers gain"
    script:
        "../../../predict_campaign.py"


BESIDE_COMPARISON.append(tables_of_cells("predicted_hits.csv"))
BESIDE_REPORT.extend(PREDICTIONS)
BESIDE_FIGURES["caches"] = PREDICTIONS
