"""Tests in several processes at once (pytest-xdist): what stays together, and what runs while nothing else does."""

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ALONE = "tests/e2e"
_TURNS = ("tests/cluster", "tests/workflow", "tests/unit", ALONE)


class AloneLast(LoadScopeScheduling):
    """Spreads modules of tests over the workers; those of ALONE come last, once a single worker is left."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith(ALONE):
            return ALONE
        if path.startswith("tests/cluster/test_kubernetes_"):
            return "the stand-in cluster"  # there is one in a process, whose objects these tests count
        # Each test of a fault has a job of its own, and takes long.
        return nodeid if path.startswith("tests/workflow") and path.endswith("_faults.py") else path

    def _assign_work_unit(self, node: WorkerController) -> None:
        if next(iter(self.workqueue)) == ALONE and len(self.nodes) > 1:
            if any(not other.shutting_down for other in self.nodes if other is not node):
                node.shutdown()
            return
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker that has ended: the one that is left may go on with ALONE."""
        crashed_in = super().remove_node(node)
        if self.workqueue:
            for other in self.nodes:
                self._reschedule(other)
        return crashed_in


def in_turn(item: pytest.Item) -> int:
    """Sort key of a test: what takes longest comes first, what runs alone last."""
    return next((turn for turn, folder in enumerate(_TURNS) if item.nodeid.startswith(folder)), len(_TURNS))
