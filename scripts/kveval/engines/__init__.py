"""Where servers run: on this host (`local`) or on a cluster (`kubernetes`), and what a server is (`servers`).

Both engines answer `protocol`; `counters`, `watchdog` and `preflight` serve both. Knows `spec` and what is below. A new
engine is a package beside `local`; a new server or sidecar a module in `servers`.
"""
