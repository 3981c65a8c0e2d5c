"""Library of the KV-cache offload evaluation: see docs/architecture.md for its rooms."""

__version__ = "0.1.0"
