"""What deploys a cell: this host (local)."""
