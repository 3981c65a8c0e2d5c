"""The programs that serve, as the specification and the analysis know it: names on its wire, arguments, no behaviour.

A server is a module here and one in `kveval.engines.servers`, each entered in the `registry` beside it.
"""
