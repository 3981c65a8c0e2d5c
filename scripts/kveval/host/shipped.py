"""The folders `config` and `manifests`, of the library's checkout or installed with it, and the checkout's commit."""

import os
import subprocess
from pathlib import Path
from typing import Literal

_LIBRARY = Path(__file__).resolve().parents[1]
# The longest that git may take to compare a checkout's files with its commit.
_ANSWER_S = 30


def shipped_folder(
    name: Literal["config", "manifests"], library: Path = _LIBRARY
) -> Path:
    """Return the folder of this name that belongs to the library.

    In a checkout it is beside `scripts`, whose package `library` is. An installed package has a copy, which setup.py
    put into `kveval/data`.
    """
    checkout = library.parents[1]
    if (checkout / "Snakefile").is_file():
        return checkout / name
    return library / "data" / name


COMMIT_VARIABLE = "KVEVAL_COMMIT"
"""Environment variable: the library's commit, where its checkout came without git's records, as from an archive."""


def library_commit(library: Path = _LIBRARY) -> str:
    """Return the commit of the checkout that the library lies in, followed by -dirty if its files were changed.

    "" where it is not known: outside a checkout, or where git does not answer for it.
    """
    checkout = library.parents[1]
    if stated := os.environ.get(COMMIT_VARIABLE):
        return stated
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_")
    }
    try:
        described = subprocess.run(
            # No tag is to stand in place of the commit.
            [*command, "--exclude=*", "--dirty"],
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return described.stdout.strip() if described.returncode == 0 else ""
