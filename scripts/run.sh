#!/usr/bin/env bash
# Sets up what is missing, then runs the workflow.
# usage: bash scripts/run.sh [snakemake arguments]      (default: report)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"
(($#)) || set -- report
exec snakemake --cores 4 "$@"
