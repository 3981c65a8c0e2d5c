"""Imports results that were measured elsewhere as cells like any other; see docs/importing.md.

`result_names` of kveval.campaign reads what a name declares, `settings` reads the server's arguments, `trees` finds the
results, `index` keeps what was read of them, `interpret` says what each is, `runs` makes runs of them, `plan` says what
each needs, `run` puts one with its PCP archives into the measurement store, `table` lists everything.
"""
