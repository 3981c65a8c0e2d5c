"""What a program prints: the command kveval or another, or a target of Snakemake, whose text is told from its own."""

import os
import re
import runpy
import sys
from pathlib import Path

import snakemake.cli
from tests.gates import forks
from tests.gates.library import PROGRAMS

_CHATTER = (
    "Using workflow specific profile",
    "Config file config/config.yaml is extended by",
    "Assuming unrestricted shared filesystem",
    "host: ",
    "Building DAG of jobs",
    "Using shell: ",
    "Provided cores: ",
    "Rules claiming more threads",
)
"""How lines of Snakemake's own begin that it prints before it refuses."""
_BANNER = re.compile(r"^SNAKEMAKE\n=+\n(?:  .*\n)*", re.MULTILINE)
# In which line of which file something was refused is for those who change it.
_PLACE = re.compile(r'^(?:\w+(?: in file .*)?:|  File ".*)$\n?', re.MULTILINE)


def transcript(folder: Path, name: str, *arguments: str) -> str:
    """Run a target, or the program of this name, in a workflow's folder.

    Return its exit status, what it prints, and why it was refused, if it was.

    Call it in a process in which the library is loaded: it runs in a fork.
    """
    printed, logged = folder / "printed.txt", folder / "logged.txt"

    def run() -> None:
        os.chdir(folder)
        for stream, path in ((1, printed), (2, logged)):
            with path.open("wb") as file:
                os.dup2(file.fileno(), stream)
        if name in PROGRAMS:
            sys.argv = [name, *arguments]
            runpy.run_module(PROGRAMS[name], run_name="__main__")
            return
        command = ["--cores", "2", "--scheduler", "greedy", name, *arguments]
        sys.argv = ["snakemake", *command]
        snakemake.cli.main(command)

    _, status = os.waitpid(forks.in_fork(run, at_exit=True), 0)
    code = os.waitstatus_to_exitcode(status)
    texts = (_own(path.read_text()) for path in (printed, logged))
    text = next(filter(None, texts), "")
    if "-n" in arguments and code == 0:
        text = "planned"
    return f"exit status: {code}\n{text}\n"


def _own(text: str) -> str:
    """Return what of a text is not Snakemake's own."""
    text = _PLACE.sub("", _BANNER.sub("", text))
    lines = [line for line in text.splitlines() if not line.startswith(_CHATTER)]
    return "\n".join(lines).strip()
