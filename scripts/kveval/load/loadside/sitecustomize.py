"""Has GuideLLM make everything - its processes, its prompts - and send its first request only when it is told to.

Python imports a module of this name at its start, from the folder that PYTHONPATH names. KVEVAL_GO is the file that is
waited for; the same name with .ready added is made once nothing is left to do but to send. KVEVAL_PROBE is a file that
is made at once, to show that this module is really imported. Without either, nothing happens. Standard library only.
"""

import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MODULE = "guidellm.scheduler.worker_group"
_POLL_S = 0.05


class Holding(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Changes GuideLLM's group of workers as soon as it is imported."""

    def __init__(self, go: Path) -> None:
        self._go = go
        self._inner: importlib.abc.Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Stand before the loader of that one module."""
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """Leave it to the module's own loader."""
        assert self._inner is not None
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        """Load the module, then change it."""
        assert self._inner is not None
        self._inner.exec_module(module)
        hold(module.WorkerProcessGroup, self._go)


def hold(group: Any, go: Path) -> None:
    """Have `group` wait for the file `go` between the making of its processes and their start."""
    create = group.create_processes

    async def create_processes(self: Any) -> None:
        await create(self)
        # All prefixes are written before the first request is there.
        self.requests = itertools.chain([next(self.requests)], self.requests)
        ready_file(go).touch()
        while not go.exists():
            await asyncio.sleep(_POLL_S)

    group.create_processes = create_processes


def ready_file(go: Path) -> Path:
    """Return the file that says that nothing is left to do but to send."""
    return go.with_name(go.name + ".ready")


if "KVEVAL_PROBE" in os.environ:
    Path(os.environ["KVEVAL_PROBE"]).touch()
elif "KVEVAL_GO" in os.environ:
    sys.meta_path.insert(0, Holding(Path(os.environ["KVEVAL_GO"])))
