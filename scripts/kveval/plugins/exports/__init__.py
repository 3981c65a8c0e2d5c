"""Results for other tools: the runs and the report of a campaign in MLflow, peaks as llm-d-benchmark's reports.

`mlflow_runs` says what is logged of a report.json, `mlflow_server` sends it; `llmd` is what the rule in `exports.smk` runs.
"""
