#!/usr/bin/env bash
# Sets up what is missing, then runs the workflow, or a command of kveval.
# usage: bash scripts/run.sh [snakemake arguments]      (default: report)
#        bash scripts/run.sh COMMAND [options]          (plan, curve, doctor, ...: kveval --help)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE # many containers set it, and every start of a program would compile it again
bash scripts/setup.sh
if [[ ":$PATH:" != *":$PWD/.venv/bin:"* ]]; then
    # What is printed names snakemake and kveval, which the caller's shell does not find.
    printf -v KVEVAL_HINT 'For the commands named above: export PATH=%q:$PATH' "$PWD/.venv/bin"
    export KVEVAL_HINT PATH="$PWD/.venv/bin:$PATH"
fi
(($#)) || set -- report
case $1 in
    plan | attach | curve | trace | import | show | models | doctor | deploy-one | teardown | verify | prune | check | history | export | --version)
        PYTHONPATH="$PWD/scripts" exec python -m kveval "$@"
        ;;
esac
exec snakemake --cores 4 "$@"
