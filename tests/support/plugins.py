"""Snakemake's plugins for the tests that need some: of this environment, or of one beside it.

Every start of snakemake imports the plugins that it finds. So that only the tests that need them wait for that, they
can be in environments apart: KVEVAL_PLUGINS names a folder with one for each lock of envs/ that was installed so.
"""

import importlib.machinery
import importlib.util
import os
import sysconfig
from pathlib import Path

VARIABLE = "KVEVAL_PLUGINS"


def folder(lock: str) -> Path | None:
    """Where the packages of a lock are, None where that is this environment."""
    parent = os.environ.get(VARIABLE)
    if parent is None:
        return None
    apart = Path(parent, lock).absolute()
    return Path(sysconfig.get_path("purelib", vars={"base": str(apart)}))


def missing(lock: str, *modules: str) -> str | None:
    """Name the modules of a lock that snakemake would not find, and what installs them; None where it finds all."""
    apart = [str(path) for path in (folder(lock),) if path is not None]
    absent = [
        name
        for name in modules
        if importlib.util.find_spec(name) is None
        and importlib.machinery.PathFinder.find_spec(name, apart) is None
    ]
    return f"no {', '.join(absent)}: bash scripts/setup.sh {lock}" if absent else None


def environment(lock: str) -> dict[str, str]:
    """Return this process's environment variables, and what has a snakemake find the packages of a lock."""
    return {**os.environ, "PYTHONPATH": str(folder(lock) or "")}
