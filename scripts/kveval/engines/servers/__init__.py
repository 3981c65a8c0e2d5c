"""The servers of a cell, while they run: what an engine asks of all replicas and sidecars alike, and what must be true.

How one program is asked is in its class in `kveval.stacks`.
"""
