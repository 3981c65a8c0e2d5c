"""What all tests share."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.support.cluster_chain import cluster
from tests.support.fault_chain import Chain, stand_in_environment
from tests.support.testbed import cluster_api, namespace

__all__ = ["cluster", "cluster_api", "namespace"]

# Tests that run snakemake find the one of the environment they run in, activated or not.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

# How fast an example is checked is the machine's affair.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

_SECONDS_TO_DETECTION: list[tuple[str, float, float]] = []


@pytest.fixture
def record_fault(record_property: Callable[[str, object], None]) -> Callable[[str, float, float], None]:
    """Note how long a fault took to be found, s, and its limit, for the report and the end of the output."""

    def record(name: str, seconds: float, limit_s: float) -> None:
        record_property("seconds_to_detection", round(seconds, 2))
        _SECONDS_TO_DETECTION.append((name, seconds, limit_s))

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List how soon every fault was found."""
    if _SECONDS_TO_DETECTION:
        terminalreporter.section("seconds until a fault was found")
        for name, seconds, limit_s in _SECONDS_TO_DETECTION:
            terminalreporter.write_line(f"{seconds:6.2f} of {limit_s:3.0f}  {name}")


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    """A job to be broken; afterwards nothing that it started may be left."""
    made = Chain(tmp_path, stand_in_environment(tmp_path / "server"), env={"KVEVAL_HOST_LOCK": str(tmp_path / "lock")})
    yield made
    assert made.left(15) == []
