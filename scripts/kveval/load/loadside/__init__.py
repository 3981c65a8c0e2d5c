"""Code that runs inside the load generator."""
