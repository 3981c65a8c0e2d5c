"""Campaigns and catalogues, the mistakes in them, and each cell's measurement with its id.

Pure. A `Specification` is made once, by `resolve`, and read by its attributes from there
on; its JSON is hashed to the measurement id, so a new field changes ids. Imports `host`
and `load`; a `Cell` alone imports less, for it is also what stored runs are named by. A
new key goes into the model of its section (`campaign`, `workload`, ...), its effect on a
cell into `resolve`, a new kind of arm into `arms`.
"""
