"""The load: what a level of a workload asks for, prompts from traces, the search for levels, GuideLLM's command line.

Knows `host`. A new kind of workload goes into `levels`; a new version of GuideLLM's reports into `reports`; what has
to run inside the load generator into `loadside`.
"""
