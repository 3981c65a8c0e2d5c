"""`kveval history` on a campaign's tables and on a history with known means."""

from pathlib import Path

import pandas as pd
from tests.support.synthetic_history import history, nightly

from kveval.plugins.builds.history import show_history, update_history
from kveval.plugins.builds.history_figure import select_series
from kveval.plugins.builds.history_files import add_to_history, read_history
from kveval.plugins.builds.series import build_series


def test_builds_are_listed_with_their_intervals_and_drawn(tmp_path: Path) -> None:
    add_to_history(tmp_path / "old", history([100] * 10, seed=1))
    add_to_history(tmp_path / "all", history([100] * 10 + [90] * 10))
    said = "\n".join(
        show_history([tmp_path / "all", tmp_path / "old"], None, tmp_path / "out")
    )
    assert str(tmp_path / "out" / "builds.csv") in said
    table = pd.read_csv(tmp_path / "out" / "builds.csv")
    assert list(table["version"]) == [nightly(number) for number in range(20)]
    assert (table["low"] < table["mean"]).all()
    assert (table["mean"] < table["high"]).all()
    assert set(table["runs"]) == {3}
    assert (tmp_path / "out" / "throughput_tok_s.png").stat().st_size > 10_000


def test_a_campaign_that_is_not_measured_adds_nothing(tmp_path: Path) -> None:
    said = update_history(tmp_path / "analysis", "smoke", [tmp_path / "history"], [])
    assert "complete_metrics.csv" in said
    assert len(read_history([tmp_path / "history"])) == 0
    assert len(list(show_history([tmp_path / "history"], None, tmp_path / "out"))) == 2


def test_a_figure_of_many_series_has_those_of_most_builds() -> None:
    rows = history([100, 101], runs=1)
    many = pd.concat([rows.assign(cpu_blocks=number) for number in range(41)])
    longest = history([100] * 20).assign(cpu_blocks=5000)
    shown = select_series(build_series(pd.concat([many, longest])))
    assert len(shown) == 40
    assert shown[0].cell.cpu_blocks == 5000
