"""The tables of REPORT.md, one module per section."""
