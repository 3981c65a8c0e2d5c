"""Servers on this host: the engine, its server and the programs beside it; `plugin` runs inside vLLM itself."""
