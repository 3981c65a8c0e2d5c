"""Results as other tools have them: llm-d's benchmark reports, runs of MLflow."""
