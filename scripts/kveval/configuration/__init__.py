"""A campaign, loaded and checked: each cell resolved into what defines its measurement.

Pure but for the files that `loading` reads. `resolve` asks a cell's server for its arguments and
makes the `Specification`; `cell_checks` and `deployment` find what is impossible, `warnings` what
will not show what it seems to, `reuse` what prompts have in common. Imports `stacks` and what is
above it: what a campaign is made of is in `campaign`, which knows no server.
"""
