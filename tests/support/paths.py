"""Where things lie in the repository."""

from collections.abc import Iterator
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
