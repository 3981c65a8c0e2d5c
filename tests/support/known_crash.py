"""A crash of vLLM 0.32 with LMCache's server, as it stands in the catalogue of known defects and in a server's log."""

from tests.support.config_files import CONFIG, RAW

from kveval.campaign.catalogue import KnownDefect
from kveval.configuration.loading import load_config

NAME = "vllm-43226"
KNOWN: dict[str, KnownDefect] = load_config(
    RAW["config"], CONFIG
).catalogue.known_defects

_E = "(EngineCore pid=15605) ERROR 11-22 14:33:56 [core.py:1512] "
_A = "(APIServer pid=14649) ERROR 11-22 14:33:56 [async_llm.py:906] "
_PACKAGES = "/srv/.server-venv/lib/python3.11/site-packages"
# With what other processes of the server wrote meanwhile.
LOG = f"""\
(APIServer pid=14649) INFO 11-22 14:33:50 [loggers.py:335] Engine 000: Running: 4 reqs, Waiting: 0 reqs
{_E}EngineCore encountered a fatal error.
{_E}Traceback (most recent call last):
{_E}  File "{_PACKAGES}/vllm/v1/engine/core.py", line 681, in step
{_E}    engine_core_outputs = self.scheduler.update_from_output(
{_E}                          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
{_A}Traceback (most recent call last):
{_A}  File "{_PACKAGES}/vllm/v1/engine/async_llm.py", line 849, in f
{_E}  File "{_PACKAGES}/vllm/v1/core/sched/scheduler.py", line 3234, in _update_from_kv_xfer_finished
(Worker pid=16017) INFO 11-22 14:33:56 [multiproc_executor.py:843] Parent process exited, terminating worker queues
{_E}    assert req_id in self.requests
{_E}           ^^^^^^^^^^^^^^^^^^^^^^^
{_A}    outputs = await engine_core.get_output_async()
{_A}vllm.v1.engine.exceptions.EngineDeadError: EngineCore died.
{_E}AssertionError
(EngineCore pid=15605) INFO 11-22 14:33:56 [multiproc_executor.py:479] [shutdown] Executor: waiting for worker exit
"""
