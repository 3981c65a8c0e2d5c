"""Makes one cell's specification of a campaign: sizes, arguments, the deployment on a cluster, the miniature.

Pure functions. A `Specification` is made once, by `resolve`, and read by its attributes from there on; its JSON is
hashed to the measurement id, so a new field changes ids. `reuse` tells how much of the workload its caches can serve.
Knows `config` and what is below. A new kind of arm goes into `arms`.
"""
