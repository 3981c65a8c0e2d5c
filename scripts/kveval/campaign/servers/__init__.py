"""The programs that serve, for the specification and the analysis: names and arguments, not behaviour.

A server is a module here and one in `kveval.engines.servers`, each entered in its package's `registry`.
"""
