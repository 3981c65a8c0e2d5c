"""report.html: the report as one self-contained file, from the same tree of sections as REPORT.md.

`page` writes it; `vendor/` has third-party scripts with their licence.
"""
