"""The store verified, pruned, and shared between users, machines and jobs in pods."""
