"""Makes one cell's specification of a campaign: sizes, arguments, the deployment on a cluster, the miniature.

Pure functions. A `Specification` is made once, by `resolve`, and read by its attributes from there on; its JSON is what
is hashed to the measurement id: what enters it changes ids. `reuse` says what its caches can serve of the workload.
Knows `config` and what is below. A new kind of arm goes into `arms`.
"""
