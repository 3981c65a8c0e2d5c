"""The keys of a campaign and of the catalogues, and every mistake in them with its place and what would be valid.

Knows `host`, `load`, `pcp`, `store`. A new key goes into the model of its section (`campaign`, `workload`, ...); what
follows from it for a cell belongs to kveval.spec.
"""
