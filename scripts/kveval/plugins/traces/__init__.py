"""Logs of requests as loads: what a log says of its requests, and the trace of it that a campaign replays.

`request_log` reads logs of any form, `conversations` and `text_blocks` find what prompts have in common, `trace_making`
writes the trace; how it is replayed is the core's affair (`load.trace_file`).
"""
