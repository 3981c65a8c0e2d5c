"""What rules and targets call: plans, the doctor, upkeep of the store, teardown, the digest of the code.

Knows everything; nothing knows it.
"""
