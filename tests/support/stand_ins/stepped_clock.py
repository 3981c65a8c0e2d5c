"""Runs a Python script under a wall clock that another process can step: `stepped_clock.py FILE PYTHON SCRIPT ...`.

Once FILE is there, time.time() is off by as many seconds as it says.
"""

import runpy
import sys
import time
from pathlib import Path

step, _python, script, *arguments = sys.argv[1:]
true_time = time.time


def stepped() -> float:
    try:
        return true_time() + float(Path(step).read_text() or 0)
    except FileNotFoundError:
        return true_time()


time.time = stepped
sys.path[0] = str(Path(script).parent)
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
