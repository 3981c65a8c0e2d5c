"""What all tests share."""

import compileall
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.support.cluster_chain import cluster, shared_cluster
from tests.support.fault_chain import Chain, stand_in_environment
from tests.support.parallel import Together, command_alone, give_way, in_turn
from tests.support.paths import SCRIPTS
from tests.support.testbed import cluster_api, kubeconfig, namespace, testbed
from xdist.remote import Producer

__all__ = [
    "cluster",
    "cluster_api",
    "kubeconfig",
    "namespace",
    "shared_cluster",
    "testbed",
]

# Tests that run snakemake find the one of the environment they run in, activated or not.
os.environ["PATH"] = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
)

# Many containers switch this off; tests start hundreds of interpreters, and each would compile all of kveval again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How fast an example is checked is the machine's affair.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# No run of a test waits for a machine that other tests keep busy; KVEVAL_QUIET_WAIT_S of tests that wait is their own.
os.environ["KVEVAL_QUIET_WAIT_S"] = "0"

_DETECTION = "seconds_to_detection"


def pytest_configure(config: pytest.Config) -> None:
    """Compile the library once, in the process that starts the others: copies of the workflow take it from there."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(SCRIPTS, quiet=2, workers=0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=in_turn)


def pytest_runtest_setup(item: pytest.Item) -> None:
    give_way(item)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while tests are collected, when next to all stays, nor ever again in what they share."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Producer
) -> Together | None:
    return Together(config, log) if config.getoption("dist") == "loadscope" else None


@pytest.fixture
def record_fault(
    record_property: Callable[[str, object], None],
) -> Callable[[str, float, float], None]:
    """Note how long a fault took to be found, s, and its limit, for the report and the end of the output."""

    def record(name: str, seconds: float, limit_s: float) -> None:
        record_property(_DETECTION, f"{seconds:6.2f} of {limit_s:3.0f}  {name}")

    return record


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List how soon every fault was found, how to repeat what failed, and what was skipped for want of what.

    A run that skips tests does not stand for the whole.
    """
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if hasattr(report, "when")
    ]
    seconds = [
        text
        for report in reports
        if report.when == "call"
        for name, text in report.user_properties
        if name == _DETECTION
    ]
    _list(terminalreporter, "seconds until a fault was found", seconds)
    failed = {
        report.nodeid: None
        for outcome in ("failed", "error")
        for report in terminalreporter.stats.get(outcome, [])
    }
    alone = [command_alone(nodeid) for nodeid in failed]
    _list(terminalreporter, "failed: the command that repeats each alone", alone)
    reasons = Counter(
        reason_of(report) for report in terminalreporter.stats.get("skipped", [])
    )
    skipped = [f"{count:6d}  {reason}" for reason, count in reasons.most_common()]
    _list(
        terminalreporter, "skipped: this run is not the whole suite, because", skipped
    )


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, in the words of the one who wrote it."""
    where = report.longrepr
    return (where[2] if isinstance(where, tuple) else str(where)).removeprefix(
        "Skipped: "
    )


def _list(
    terminalreporter: pytest.TerminalReporter, title: str, lines: list[str]
) -> None:
    if lines:
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    """A job to be broken; afterwards nothing that it started may be left."""
    made = Chain(
        tmp_path,
        stand_in_environment(tmp_path / "server"),
        env={"KVEVAL_HOST_LOCK": str(tmp_path / "lock")},
    )
    yield made
    assert made.left(15) == []
