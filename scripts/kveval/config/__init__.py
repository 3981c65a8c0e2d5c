"""The keys of campaigns and catalogues, and error messages that name the file, the key and the valid values.

Imports `host`, `load`, `pcp`, `store`. A new key goes into the model of its section (`campaign`, `workload`, ...); its
effect on a cell belongs to kveval.spec.
"""
