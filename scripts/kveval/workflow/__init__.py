"""Functions of rules, and the command `kveval`: a campaign's runs, the doctor, upkeep of the store, builds compared.

May import every package; nothing imports it. `runs` has the record of a run, by which rules learn all they need of it;
`report_settings` what the analysis is told of a campaign; only `invocation` uses Snakemake's internals.
"""

HINT_VARIABLE = "KVEVAL_HINT"
"""Environment variable of scripts/run.sh: how the commands that are named become available in the caller's shell."""
