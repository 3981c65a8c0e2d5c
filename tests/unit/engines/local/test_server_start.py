"""What the local engine adds to the start of a vLLM: garbage collected rarely at first, the engine forked if asked for."""

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kveval.stacks.registry import VLLM

PLUGINS = VLLM.plugins
THRESHOLDS = "import gc; print(*gc.get_threshold())"
USUAL = " ".join(map(str, gc.get_threshold()))

# vLLM as far as the plug-in uses it: a platform that has processes imported anew, as that of CPUs does.
PRETENDED = """
import gc, logging, os, sys, types
print("at first:", *gc.get_threshold())

class Platform:
    @staticmethod
    def check_and_update_config(config):
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"

    def is_cpu(self):
        return {on_cpu}

for name, parts in {{
    "vllm": {{}},
    "vllm.logger": {{"init_logger": logging.getLogger}},
    "vllm.platforms": {{"current_platform": Platform()}},
}}.items():
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(parts)

import kveval_start

def method():
    return os.environ.get("VLLM_WORKER_MULTIPROC_METHOD")

kveval_start.register()
Platform.check_and_update_config(None)
print("of the server:", method(), *gc.get_threshold(), flush=True)
if os.fork() == 0:
    print("in a new process:", method(), flush=True)
    Platform.check_and_update_config(None)
    print("after its check:", method(), flush=True)
    os._exit(0)
os.wait()
"""


def python(code: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_garbage_is_collected_rarely_until_the_server_has_imported_everything():
    assert python(THRESHOLDS, PYTHONPATH=str(PLUGINS)) == ["50000 10 10"]


def test_garbage_is_collected_as_usual_where_the_plug_in_may_not_be_called():
    assert python(THRESHOLDS, PYTHONPATH=str(PLUGINS), VLLM_PLUGINS="mine") == [USUAL]


def test_a_sitecustomize_of_the_environments_own_still_runs(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("print('its own')")
    path = os.pathsep.join((str(PLUGINS), str(tmp_path)))
    assert python(THRESHOLDS, PYTHONPATH=path) == ["its own", "50000 10 10"]


@pytest.mark.parametrize(
    ("start", "on_cpu", "method"),
    [
        ("fork", True, "fork"),
        ("fork", False, "spawn"),
        ("spawn", True, "spawn"),
    ],
)
def test_only_the_engine_of_a_cpu_is_forked_and_only_if_asked_for(
    start, on_cpu, method
):
    code = PRETENDED.format(on_cpu=on_cpu)
    environment = {"PYTHONPATH": str(PLUGINS), "VLLM_WORKER_MULTIPROC_METHOD": start}
    assert python(code, **environment) == [
        "at first: 50000 10 10",
        f"of the server: {method} {USUAL}",
        "in a new process: spawn",
        "after its check: spawn",
    ]
