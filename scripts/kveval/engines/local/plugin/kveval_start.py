"""A faster start of vLLM on a CPU: its engine forked from its API server, as vLLM itself can do it on GPUs.

With VLLM_WORKER_MULTIPROC_METHOD=fork an engine takes over what its API server has imported. vLLM's CPU platform sets
"spawn" instead, so that OpenMP reads its variables in the worker, which computes. Here the variable holds for the engine,
which schedules and needs no OpenMP, and the worker is started as vLLM does it.

vLLM calls `register` in each of its processes, through its plug-in point `vllm.general_plugins`.
"""

import gc
import os
import sys
from typing import Any

from vllm.logger import init_logger
from vllm.platforms import current_platform

_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
# Below vLLM's own logger, whose handlers it inherits.
logger = init_logger("vllm.kveval_start")


def register() -> None:
    """Collect garbage as usual again, and have the engine forked if the environment says so."""
    # Raised for the imports, which are over; a module of that name that is not ours has raised nothing.
    site = sys.modules.get("sitecustomize")
    gc.set_threshold(*getattr(site, "USUAL_THRESHOLD", gc.get_threshold()))
    if os.environ.get(_METHOD) != "fork" or not current_platform.is_cpu():
        return
    platform, server = type(current_platform), os.getpid()
    check = platform.check_and_update_config

    def check_and_fork(config: Any) -> None:
        check(config)
        # In the engine's process it stays as vLLM has just set it, for the worker.
        if os.getpid() == server:
            os.environ[_METHOD] = "fork"
            logger.info("kveval: the engine is forked, the worker is not")

    platform.check_and_update_config = staticmethod(check_and_fork)
    os.register_at_fork(
        # Else a collection in the engine writes to each object, and copies the pages that both processes could share.
        before=gc.freeze,
        after_in_child=lambda: os.environ.__setitem__(_METHOD, "spawn"),
    )
