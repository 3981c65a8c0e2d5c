"""Snakemakes, and the scripts of their jobs, as forks of a process that has loaded the libraries: half of what they cost.

For tests that look at what snakemake prints and makes. Where it is signalled, it and the measurements are processes as
users start them (tree.py), and the other jobs are forks. The process that is forked has nothing of the workflow's own
library, which every copy of the workflow has its own of.
"""

import atexit
import functools
import gc
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.gates.forks import served
from tests.support.paths import REPOSITORY

_LIBRARIES = (
    *("snakemake.cli", "snakemake.script", "snakemake.executors.local"),
    *("jinja2.sandbox", "jsonschema", "kubernetes_validate", "llmd_benchmark_report"),
    *("markdown_it", "msgspec", "numpy", "packaging.requirements", "pandas", "psutil"),
    *("prometheus_client", "pyarrow.compute", "pyarrow.parquet", "pydantic", "yaml"),
    *("rich.console", "rich.table", "scipy.optimize", "scipy.stats", "typer"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "zstandard"),
)
_STARTER = "start_snakemake.py"
_START = """\
import sys
from pathlib import Path

from snakemake.cli import main

# With this Python snakemake starts the scripts of rules.
sys.executable = str(Path(__file__).with_name("python"))
sys.argv[0] = "snakemake"
main()
"""
_PYTHON_OF_MEASUREMENTS = """\
#!/bin/sh
case "$1" in
*/benchmark.py) exec {python} "$@" ;;
*) exec {forked} "$@" ;;
esac
"""


def snakemake_command() -> list[str]:
    """Return the command for a snakemake of which only the jobs are forks, and of these none that measures."""
    return [sys.executable, str(_programs().with_name("measuring") / _STARTER)]


def run_snakemake(
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    limit_s: float = 900.0,
) -> tuple[int, str]:
    """Run snakemake with two cores, if not given others, in a folder.

    Return its exit status, and what it prints on both outputs.
    """
    programs = _programs()
    done = subprocess.run(
        [programs / "python", programs / _STARTER, "--cores", "2", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
    )
    return done.returncode, done.stdout


def snakemake(folder: Path, *arguments: str) -> str:
    """Run snakemake, which must succeed, and return what it prints."""
    code, output = run_snakemake(folder, *arguments)
    assert code == 0, output[-6000:]
    return output


@functools.cache
def _programs() -> Path:
    """Start the process that is forked, which ends with this one; return its folder of programs."""
    folder = Path(tempfile.mkdtemp(prefix="loaded-"))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.loaded", folder / "forks"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": "", "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # Not for the process that is forked to remove: what it has for its end its forks do at theirs.
    atexit.register(shutil.rmtree, folder)
    atexit.register(process.communicate)
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def main(folder: Path) -> None:
    """Serve forks of this process, with the libraries loaded, until its input ends; print the folder of programs."""
    for library in _LIBRARIES:
        importlib.import_module(library)
    gc.collect()
    gc.freeze()
    with served(folder) as programs:
        measuring = programs.with_name("measuring")
        measuring.mkdir()
        python = measuring / "python"
        python.write_text(
            _PYTHON_OF_MEASUREMENTS.format(
                python=sys.executable, forked=programs / "python"
            )
        )
        python.chmod(0o755)
        for place in (programs, measuring):
            (place / _STARTER).write_text(_START)
        print(programs, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
