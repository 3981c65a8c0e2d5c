"""llm-d on Kubernetes: the engine, and what it deploys, watches, collects and removes: docs/cluster.md.

`manifests` renders the documents, `api` is the client, `wait` waits for pods and finds out why they do not start.
"""
