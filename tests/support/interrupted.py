"""Stops a program at a chosen one of its changes to the file system: killed, or with no byte more to write.

In a test, `interrupted` does so to a function in a process of its own. As a program -
`interrupted.py ACTION EVENT PATTERN COUNT PYTHON SCRIPT ...` - it runs a Python script and does so at the COUNTth EVENT
whose path matches PATTERN; the events are Python's audit events, so that nothing depends on how the script is made.
"""

import contextlib
import os
import re
import resource
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = (
    "open",
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.chmod",
    "os.symlink",
)


def kill() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def fill() -> None:
    """Have every write of this process fail from now on, as on a full disk."""
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )


def at(
    action: Callable[[], None], chosen: Callable[[str, str], bool], count: int
) -> Callable[[], bool]:
    """Do `action` just before the `count`th change of a file or folder that is `chosen(event, path)`.

    Return what tells whether it came to that.
    """
    seen = 0

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in CHANGES or (
            event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        ):
            return
        path = arguments[1] if event == "os.rename" else arguments[0]
        if isinstance(path, int) or not chosen(event, os.fsdecode(path)):
            return
        seen += 1
        if seen == count:
            action()

    sys.addaudithook(look)
    return lambda: seen >= count


def interrupted(
    work: Callable[[], object],
    within: Path,
    count: int,
    action: Callable[[], None] = kill,
) -> bool:
    """Do `work` in a process of its own, interrupted at its `count`th change below `within`; tell whether it was."""
    child = os.fork()
    if child == 0:
        came_to_it = at(
            action,
            lambda event, path: Path(path).absolute().is_relative_to(within),
            count,
        )
        with contextlib.suppress(Exception):
            work()
        os._exit(1 if came_to_it() else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


if __name__ == "__main__":
    action, event, pattern, number, _python, script, *rest = sys.argv[1:]
    path_pattern = re.compile(pattern)
    at(
        {"kill": kill, "fill": fill}[action],
        lambda name, path: name == event and bool(path_pattern.search(path)),
        int(number),
    )
    sys.path[0] = str(Path(script).parent)
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")
