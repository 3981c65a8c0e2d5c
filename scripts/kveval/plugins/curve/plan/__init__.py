"""Answers before anything is measured: curves of hits by tier size, and whether a tier can pay."""
