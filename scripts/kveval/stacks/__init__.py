"""The programs of a serving stack: one class each, in one file, and an entry in `registry`.

A class says everything that is known of its program: arguments, environment, names of counters, sizes, what its
start reports, how it is asked for its health, its version and its counters, how it is emptied. A `ModelServer` serves
models; a `Sidecar` is a program beside it. Nothing here talks by itself: methods that ask something of a running
program get a callable that sends the request, so that the configuration and the analysis use the same class as the
engines. Imports `campaign` and what is above it; `configuration` builds on it.
"""
