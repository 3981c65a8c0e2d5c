"""NVIDIA GPUs of this host: what is fixed about each, an exporter of what changes, and which software fits them."""
