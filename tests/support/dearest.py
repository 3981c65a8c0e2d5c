"""The modules of tests that cost most: `pytest -p tests.support.dearest`.

Prints processor seconds, those of programs that a test waited for included, and seconds by the clock. The former say
what a change saved, also beside other work; the latter what a run waits for.
"""

import os
import time
from collections import defaultdict
from collections.abc import Generator

import pytest

SHOWN = 20


def pytest_configure(config: pytest.Config) -> None:
    """Take the time of every test."""
    config.pluginmanager.register(Costs())


class Costs:
    """What each phase of a test costs, as `cost_s` of its report, which pytest-xdist carries to the first process."""

    def __init__(self) -> None:
        self._latest = _used_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Count from the beginning of a test: a worker of pytest-xdist waits between two."""
        self._latest = _used_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Give a report what was used since the one before it."""
        report = yield
        now = _used_s()
        report.cost_s = tuple(b - a for a, b in zip(self._latest, now, strict=True))
        self._latest = now
        return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the dearest modules and the sum of all."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for reports in terminalreporter.stats.values():
        for report in reports:
            for index, seconds in enumerate(getattr(report, "cost_s", ())):
                sums[report.nodeid.partition("::")[0]][index] += seconds
    terminalreporter.section("dearest modules: processor seconds, seconds, module")
    dearest = sorted(sums.items(), key=lambda module: -module[1][0])
    sums_of_all = [sum(costs[index] for costs in sums.values()) for index in (0, 1)]
    for name, (processor_s, clock_s) in [*dearest[:SHOWN], ("all", sums_of_all)]:
        terminalreporter.write_line(f"{processor_s:8.1f} {clock_s:8.1f}  {name}")


def _used_s() -> tuple[float, float]:
    """Return the processor seconds of this process and of those it has waited for, and the seconds of a clock."""
    return sum(os.times()[:4]), time.perf_counter()
