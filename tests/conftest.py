"""What all tests share."""

import os
import sys
from pathlib import Path

# Tests that run snakemake find the one of the environment they run in, activated or not.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
