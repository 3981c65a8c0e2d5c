"""What runs inside the load generator."""
