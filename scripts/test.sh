#!/usr/bin/env bash
# Sets up what is missing, the test requirements included, then runs the test suite.
# usage: bash scripts/test.sh [pytest arguments]
# Tests run in four processes, because many wait; with -n 0 in one, which --pdb and -s need.
# KVEVAL_TEST_DATA: folder with real measurements; without it the tests that read them are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh pcp redis workflow server test
export PATH="$PWD/.venv/bin:$PATH"
exec python -m pytest -n 4 --dist loadscope --no-loadscope-reorder "$@"
