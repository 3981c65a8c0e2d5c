"""The measurement store: complete, checksummed runs under the hash of what defines them, never changed: docs/store.md.

Also the files of the history of results: docs/history.md. Knows `host` and, of `campaign`, the cell. What a run's
description holds is in `run_file`; tidying and sharing are in kveval.workflow.upkeep.
"""
