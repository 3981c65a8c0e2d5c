"""Recording where Performance Co-Pilot is not installed: exporters and the kernel's own counters, to Parquet.

Metrics, instances and units have the names that PCP gives them, so that whatever reads recordings reads these.
"""
