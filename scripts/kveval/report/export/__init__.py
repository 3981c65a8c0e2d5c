"""The report for programs: report.json and llm-d's benchmark report, with their schemas."""
