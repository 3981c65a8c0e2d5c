"""Results for other tools: the runs and the report of a campaign in MLflow.

`mlflow_runs` says what is logged of a report.json, `mlflow_server` sends it.
"""
