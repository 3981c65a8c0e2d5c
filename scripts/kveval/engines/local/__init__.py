"""Servers, load and recording on this host: the three parts of its engine; `plugin` runs inside vLLM itself."""
