"""Helpers of scripts/setup.sh and bundle.sh that run before an environment exists: standard library, packaging only."""
