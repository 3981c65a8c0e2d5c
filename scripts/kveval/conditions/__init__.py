"""Conditions: what ran in a run, and what was counted, in terms that are the same for all servers; conditions.json.

Made of the raw facts in run.json, for stored and imported runs as well, and again when this is mended. Behind it nothing
knows servers. Imports `stacks`, `configuration`, `store` and above.
"""
