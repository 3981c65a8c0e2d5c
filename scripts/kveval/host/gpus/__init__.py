"""NVIDIA GPUs of this host: their fixed properties, an exporter of changing metrics, and which software fits them."""
