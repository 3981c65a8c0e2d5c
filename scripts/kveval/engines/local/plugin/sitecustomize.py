"""Has Python collect garbage rarely while the server imports its libraries, which saves a sixth of that time.

Python imports a module of this name at its start, from the folder that PYTHONPATH names. `kveval_start` sets what is
usual again as soon as the imports are over; a process that does not call it goes on collecting rarely. Standard library
only.
"""

import gc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

USUAL_THRESHOLD = gc.get_threshold()
"""When Python collects by itself; it depends on the release."""

# With a plug-in list of the user's, kveval_start may not be called.
if "VLLM_PLUGINS" not in os.environ:
    gc.set_threshold(50_000, 10, 10)

# One of the environment's own, which this one hides.
_HERE = Path(__file__).resolve().parent
_hidden = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if Path(path).resolve() != _HERE]
)
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(importlib.util.module_from_spec(_hidden))
