"""Where servers run: on this host (`local`), on a cluster (`kubernetes`), or already (`attached`).

An engine is a composition of the three parts in `protocol`: a deployer, a load runner and a recorder. All use `counters`,
`watchdog` and `preflight`, and ask the servers of a cell by `servers`. Imports `campaign` and the packages below it. A new
engine is a package beside `local`, or other parts in one that exists; a new server or sidecar is a class in `kveval.stacks`.
"""
