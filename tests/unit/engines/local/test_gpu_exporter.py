"""The exporter of GPUs as a process beside a run, with a stand-in for NVML; and a host where it cannot work."""

import sys
from pathlib import Path

from tests.support.paths import REPOSITORY

from kveval.engines.local.gpu_exporter import SOURCE, gpu_exporter
from kveval.host.http import fetch
from kveval.host.processes import supervisor

MODULE = "import sys\nfrom tests.support.fake_nvml import FakeNvml\nsys.modules[__name__] = FakeNvml()\n"


def test_its_metrics_are_served_for_as_long_as_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(MODULE)
    env, said = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}, list[str]()
    with (
        supervisor(tmp_path / "registry") as processes,
        gpu_exporter(
            processes, Path(sys.executable), tmp_path, "0", env, said.append
        ) as endpoints,
    ):
        text = fetch(endpoints[SOURCE]).decode()
    assert 'gpu_active_percent{gpu="0"} 97.0' in text
    assert 'gpu="1"' not in text
    assert said == []


def test_without_nvml_a_run_goes_on_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        supervisor(tmp_path / "registry") as processes,
        gpu_exporter(
            processes, Path(sys.executable), tmp_path, "", {}, said.append
        ) as endpoints,
    ):
        assert endpoints == {}
    assert "pynvml" in said[0]
