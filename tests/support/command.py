"""The command `kveval`, in this process and as one of its own."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from kveval.workflow.command.main import app


def kveval(folder: Path, *words: str) -> tuple[int, str]:
    """Run a command in a folder, in this process; return its exit status, and what it prints on both outputs."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, words)
    return done.exit_code, done.output


def start_kveval(
    folder: Path, *words: str, env: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start a command in a copy of the workflow, with the copy's own library."""
    return subprocess.Popen(
        [sys.executable, "-m", "kveval", *words],
        cwd=folder,
        env={**(env or os.environ), "PYTHONPATH": str(folder / "scripts")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
