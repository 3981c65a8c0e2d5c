"""Recordings to system metrics of a level: windows, metrics of config/metrics.yaml, timelines, tier activity."""
