"""System metrics of a level from its recording: windows, metrics of config/metrics.yaml, timelines, tier activity."""
