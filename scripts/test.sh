#!/usr/bin/env bash
# Sets up what is missing, the test requirements included, then runs tests.
# usage: bash scripts/test.sh                           the fast tests, and the real chain once: vLLM, GuideLLM and PCP
#        bash scripts/test.sh --all [pytest arguments]  all tests
#        bash scripts/test.sh pytest arguments          those that the arguments choose
# Tests run in four processes, because many wait; with -n 0 in one, which --pdb and -s need.
# KVEVAL_TEST_DATA: folder with real measurements; without it the tests that read them are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE # many containers set it, and every start of a program would compile it again
bash scripts/setup.sh pcp redis workflow server test
export PATH="$PWD/.venv/bin:$PATH"
pytest=(python -m pytest -n 4 --dist loadscope --no-loadscope-reorder)
status=0
if [[ ${1:-} == --all ]]; then
  shift
  "${pytest[@]}" "$@" || status=$?
  echo "not run: the tests that are listed above as skipped, if any; each reason says what they need"
  exit "$status"
fi
(($# == 0)) || exec "${pytest[@]}" "$@"

"${pytest[@]}" -m "not e2e and not workflow and not cluster" || status=$?
# Nothing runs beside it: it measures.
python -m pytest tests/e2e/test_campaign.py || status=$?
((status == 0)) || echo "failed: see above; each test that failed is listed with the command that repeats it alone"
echo "not run: the tests marked workflow, cluster and e2e, but for tests/e2e/test_campaign.py. bash scripts/test.sh --all runs them"
exit "$status"
