"""Where things lie in the repository, and how they are copied."""

import contextlib
import os
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "config"
SCRIPTS = REPOSITORY / "scripts"
DATA = REPOSITORY / "tests" / "support" / "data"
STAND_INS = REPOSITORY / "tests" / "support" / "stand_ins"
SHIMS = REPOSITORY / "tests" / "support" / "shims"
PACKAGES = ("kveval", "pcp_parquet")
"""The packages in scripts/; nothing of the second imports the first."""


def library_files(root: Path = SCRIPTS) -> Iterator[Path]:
    """Yield every module of the packages in scripts/, without what tests and builds of pcp_parquet are there."""
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            if path.relative_to(root).parts[1] not in ("tests", "build"):
                yield path


def rule_files() -> list[Path]:
    """Return the Snakefile, and the files of rules: the core's and those of plug-ins."""
    rules = (*REPOSITORY.glob("rules/*.smk"), *SCRIPTS.glob("kveval/plugins/*/*.smk"))
    return [REPOSITORY / "Snakefile", *rules]


def copy_parts(folder: Path, parts: Iterable[str]) -> Path:
    """Copy files and folders of the repository into `folder`, which is made if it is not there.

    Compiled modules are there, too: each copy would compile all of them again. What another process is writing at the
    moment is not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = shutil.ignore_patterns("*.pyc.*")
    for part in parts:
        source = REPOSITORY / part
        if source.is_dir():
            shutil.copytree(
                source, folder / part, ignore=unfinished, copy_function=copy_or_link
            )
        else:
            shutil.copy2(source, folder / part)
    return folder


def copy_or_link(source: str, target: str) -> None:
    """Copy a file; link a compiled module, half of all files, which Python replaces and never writes into."""
    if source.endswith(".pyc"):
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file of the tests; Python before 3.11.4, as Debian 12's, has no filters."""
    with tarfile.open(archive) as opened:
        opened.extraction_filter = getattr(tarfile, "data_filter", None)
        opened.extractall(folder)
