"""report.html: the report as one file that loads nothing, from the tree of sections that REPORT.md is made from too.

`page` puts it together; `vendor/` has what others wrote, with its licence.
"""
