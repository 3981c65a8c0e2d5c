"""Programs that serve: vLLM, LMCache, Redis and Valkey; how they are started, queried and checked to be alive.

Only this package depends on a program's own behaviour. A model server is one entry of `registry`; its names and
arguments are in `kveval.campaign.servers`.
"""
