"""The tables of REPORT.md, one module a section."""
