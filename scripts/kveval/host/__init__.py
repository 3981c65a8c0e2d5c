"""This machine: processes and their sessions, locks, ports, files, logs, hardware, HTTP, hashing, secrets; written values.

It imports nothing else of kveval and has nothing to do with KV caches. Add here what any program could need.
"""
