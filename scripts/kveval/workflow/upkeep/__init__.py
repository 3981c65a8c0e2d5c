"""Upkeep of the store: verifying, pruning, and sharing it between users, machines and jobs in pods."""
