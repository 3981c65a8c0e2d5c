"""Functions of rules and targets: a campaign's plan, the doctor, upkeep of the store, teardown, the digest of the code.

Knows everything; nothing knows it. `campaign_plan` has the input functions and params of the rules, `invocation` alone
asks Snakemake's internals. What a rule newly asks of the campaign is a method of the plan.
"""
