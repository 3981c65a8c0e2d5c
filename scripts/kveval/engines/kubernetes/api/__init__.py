"""The Kubernetes API: one client with retries, exec, logs, transfers. Knows nothing of campaigns."""
