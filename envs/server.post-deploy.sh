#!/usr/bin/env bash
# Run by Snakemake inside the conda environment made from server.yaml, in the repository's root.
set -euo pipefail
source scripts/lib_setup.sh
install_server "$CONDA_PREFIX/bin/python"
pip_install "$CONDA_PREFIX/bin/python" --require-hashes -r envs/lmcache.lock
