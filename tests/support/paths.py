"""Where things lie in the repository."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = REPOSITORY / "config"
SCRIPTS = REPOSITORY / "scripts"
DATA = REPOSITORY / "tests" / "support" / "data"
STAND_INS = REPOSITORY / "tests" / "support" / "stand_ins"
SHIMS = REPOSITORY / "tests" / "support" / "shims"
