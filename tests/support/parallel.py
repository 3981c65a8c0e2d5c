"""Tests in several processes at once (pytest-xdist): what stays together in one of them, and what comes first."""

import shlex

import pytest
from xdist.scheduler import LoadScopeScheduling

REAL = "tests/e2e"
REPORT = "tests/unit/report"
_TURNS = (REAL, "tests/cluster", "tests/workflow", "tests/unit")


class Together(LoadScopeScheduling):
    """Spreads modules of tests over the processes.

    All tests with a real vLLM are in one, as measurements of one host have to be; so are those of reports, which share
    made-up campaigns. Tests of a fault, which have a job of their own and take long, are spread one by one.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith(REAL):
            return REAL
        if path.startswith(REPORT) and not path.endswith("test_figures.py"):
            return REPORT
        if path.startswith("tests/cluster/test_kubernetes_"):
            return "the stand-in cluster"  # there is one in a process, whose objects these tests count
        return (
            nodeid
            if path.startswith("tests/workflow") and path.endswith("_faults.py")
            else path
        )


def in_turn(item: pytest.Item) -> int:
    """Sort key of a test: what takes longest comes first."""
    return next(
        (turn for turn, folder in enumerate(_TURNS) if item.nodeid.startswith(folder)),
        len(_TURNS),
    )


def command_alone(nodeid: str) -> str:
    """Return the command that runs a single test, or a module that could not be imported, in one process."""
    return f"bash scripts/test.sh -n 0 {shlex.quote(nodeid)}"
