"""This machine: processes and their sessions, locks, ports, files, logs, hardware, HTTP, hashing, secrets.

It knows nothing of the rest of kveval and nothing of KV caches. Add here what a program of any kind would need.
"""
