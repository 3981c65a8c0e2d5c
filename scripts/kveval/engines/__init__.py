"""Where servers run: on this host (`local`) or on a cluster (`kubernetes`), and what is asked of the servers of a cell (`servers`).

Both engines implement `protocol` and use `counters`, `watchdog` and `preflight`. Imports `campaign` and the packages below
it. A new engine is a package beside `local`; a new server or sidecar is a class in `kveval.stacks`.
"""
