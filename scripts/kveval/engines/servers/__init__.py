"""Programs that are started to serve: vLLM, LMCache, Redis and Valkey; how they are started, asked and judged alive.

What depends on a program's own behaviour is only here; what serves is one entry of `registry`, and its
names and arguments are in `kveval.spec.servers`.
"""
