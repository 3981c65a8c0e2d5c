"""Helpers of scripts/setup.sh and bundle.sh, run before there is an environment: standard library, packaging."""
