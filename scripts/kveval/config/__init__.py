"""The keys of a campaign and of the catalogues, and the mistakes in them, each with file, key and valid values.

Knows `host`, `load`, `pcp`, `store`. A new key goes into the model of its section (`campaign`, `workload`, ...); what
follows from it for a cell belongs to kveval.spec.
"""
