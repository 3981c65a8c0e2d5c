"""The format of PCP's archives, read without PCP: volumes, records, metadata, value sets, units.

Knows `host`. Add here what another version of the format has; what is made of it belongs to `conversion`.
"""
