"""Tests in several processes at once (pytest-xdist): what stays together in one of them, and what comes first."""

import functools
import os
import shlex

import pytest
from xdist.scheduler import LoadScopeScheduling

REAL = "tests/e2e"
STAND_IN_CLUSTER = "tests/cluster/test_kubernetes_"
REPORT = "tests/unit/report"
# What stays together in one process comes first: the two chains, then the reports, which one process would otherwise
# end with alone. What is short comes last, and fills the processes to the end.
_TURNS = (
    *(REAL, STAND_IN_CLUSTER, "tests/cluster", REPORT),
    *("tests/workflow", "tests/gates", "tests/unit"),
)
_NICE = 5


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
        if path.startswith(STAND_IN_CLUSTER):
            return STAND_IN_CLUSTER  # there is one in a process, whose objects these tests count
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


def give_way(item: pytest.Item) -> None:
    """Let tests of real servers have the processors first, where tests run in several processes.

    They are one long chain, which decides when the last test ends; the other processes wait for it otherwise.
    """
    if "PYTEST_XDIST_WORKER" in os.environ and not item.nodeid.startswith(REAL):
        _lower_priority()


@functools.cache
def _lower_priority() -> None:
    os.nice(_NICE)


def command_alone(nodeid: str) -> str:
    """Return the command that runs a single test, or a module that could not be imported, in one process."""
    return f"bash scripts/test.sh -n 0 {shlex.quote(nodeid)}"
