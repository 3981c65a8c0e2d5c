"""Results that were measured elsewhere, made cells like any other; docs/importing.md is the tour.

`result_names` of kveval.config reads what a name declares, `settings` what the arguments say ran, `trees` finds the
results, `index` keeps what was read of them, `interpret` says what each is, `runs` makes runs of them, `plan` says what
each needs, `run` puts one into the measurement store, `archives` finds its PCP archives, `table` lists everything.
"""
