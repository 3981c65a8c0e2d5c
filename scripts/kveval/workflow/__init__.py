"""Functions of rules, and the command `kveval`: a campaign's plan, the doctor, upkeep of the store, builds compared.

May import every package; nothing imports it. `campaign_plan` has the input functions and params of the rules; only
`invocation` uses Snakemake's internals. What a new rule needs to know of the campaign becomes a method of the plan.
"""
