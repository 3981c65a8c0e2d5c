"""Servers on this host: the engine, its server and the sidecars; `plugin` runs inside vLLM itself."""
