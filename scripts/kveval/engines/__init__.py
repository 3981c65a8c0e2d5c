"""Where servers run: on this host (`local`) or on a cluster (`kubernetes`), and what a cell's servers are asked (`servers`).

Both engines implement `protocol` and use `counters`, `watchdog` and `preflight`. Imports `campaign` and the packages below
it. A new engine is a package beside `local`; a new server or sidecar is a class in `kveval.stacks`.
"""
