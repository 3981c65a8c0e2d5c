"""Known defects that ended runs of a campaign, as its result lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kveval.report.result.model import RepeatedRuns, ReportedDefect
from kveval.store.run_file import Run


def known_defects(runs: Sequence[Run]) -> Iterator[ReportedDefect]:
    """Yield each known defect that ended runs, with the runs that were measured again for it."""
    repeats = [(run, repeat) for run in runs for repeat in run.repeats]
    for defect, known in {repeat.defect: repeat for _, repeat in repeats}.items():
        # A run once for each attempt that the defect ended.
        ended = [run for run, repeat in repeats if repeat.defect == defect]
        scenarios = dict.fromkeys(run.cell.scenario for run in ended)
        yield ReportedDefect(
            defect=defect,
            title=known.title,
            link=known.link,
            effect=known.effect,
            scenarios=[_repeated(name, ended, runs) for name in scenarios],
        )


def _repeated(scenario: str, ended: Sequence[Run], runs: Sequence[Run]) -> RepeatedRuns:
    attempts = [run for run in ended if run.cell.scenario == scenario]
    return RepeatedRuns(
        scenario=scenario,
        repeated=len({(run.measurement, run.run) for run in attempts}),
        runs=sum(run.cell.scenario == scenario for run in runs),
        attempts=len(attempts),
    )
