"""Waiting for objects of a cluster, and saying why they are not there."""
