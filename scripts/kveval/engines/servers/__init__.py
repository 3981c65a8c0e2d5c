"""Programs that are started to serve: vLLM, LMCache, Redis and Valkey; how they are started, asked and judged alive.

What depends on a program's own behaviour or on names on its wire stands here and nowhere else.
"""
