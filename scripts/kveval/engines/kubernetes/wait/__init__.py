"""Waiting for objects of a cluster, and diagnosing why they do not start."""
