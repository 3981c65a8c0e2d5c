"""A server that runs already, asked from outside: no campaign, no store, nothing started or stopped.

`survey` is the whole: it finds out what answers, times a prefix in the three places it can come from, judges what came
of it, and on request searches for the capacity of the caches. Every request goes through `client`, which keeps the
bounds; `meter` sets the server's counters against what was sent. Imports `stacks`, what is above it, and what `engines`
asks of servers; it must stay light, as it is installed without the workflow's packages.
"""
