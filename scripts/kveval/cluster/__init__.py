"""llm-d on Kubernetes: manifests rendered from a specification, and the way to run and remove them."""
