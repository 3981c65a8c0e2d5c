"""Functions of rules and targets: a campaign's plan, the doctor, upkeep of the store, teardown, the digest of the code.

May import every package; nothing imports it. `campaign_plan` has the input functions and params of the rules; only
`invocation` uses Snakemake's internals. What a new rule needs to know of the campaign becomes a method of the plan.
"""
