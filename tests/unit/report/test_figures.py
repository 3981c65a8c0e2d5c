import contextlib
import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import matplotlib.image
import matplotlib.text
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from tests.support import synthetic_campaign as campaign
from tests.support.synthetic import comparison_table, levels_table, peaks_table

from kveval.analysis.cells import ArmSize, CellKey, by_size, rank_of
from kveval.report.data.figures import FigureData
from kveval.report.data.run_facts import key_of, tiers_of
from kveval.report.data.style import look_of
from kveval.report.figures import latency, names
from kveval.report.figures.axes import NothingToDraw, panels
from kveval.report.figures.draw import FigureError, draw, write_figure, write_figures
from kveval.report.figures.names import FAMILIES, FIGURES, figure_names, figures_of, find_figure
from kveval.report.report import write_report

MODELS = ("Qwen3-0.6B", "Qwen3-14B")
ARMS = ("no-offload", "native-offload", "lmcache-valkey", "llm-d-redis")
LEVELS = (1, 50, 200, 650)
DPI = 60


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return campaign.recording(tmp_path_factory.mktemp("recording"))


@pytest.fixture(scope="module")
def data(recording: Path) -> FigureData:
    """Two of the models with an arm of each kind and both tier sizes, and one recording for all of it."""
    return made_of(campaign.cells(MODELS, ARMS), recording)


@pytest.fixture(scope="module")
def small(recording: Path) -> FigureData:
    """One model with three arms: what does not depend on how many there are is told sooner."""
    return made_of(campaign.cells(MODELS[1:], ("no-offload", "native-offload", "lmcache-redis")), recording)


def made_of(cells: list[CellKey], recording: Path) -> FigureData:
    levels = campaign.levels_table(cells, levels=LEVELS)
    levels = levels.assign(lmcache_hit_tok_s=levels["external_cache_hit_percent"])
    measured = campaign.measured(levels)
    return FigureData(
        levels,
        measured.peaks,
        measured.comparison,
        "kubernetes engine, full weights · 48 CPUs",
        parameters=campaign.PARAMETERS,
        baselines=frozenset({"no-offload"}),
        tiers={key_of(run): tiers_of(run) for run in measured.runs},
        recordings={(key_of(run), run.run): recording for run in measured.runs},
        metrics={**campaign.METRICS, "lmcache_hit_tok_s": {"title": "LMCache hits", "unit": "tok/s"}},
        server_version="0.32.0",
    )


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(matplotlib.text.Text)}


def test_every_figure_has_a_function_and_a_caption_and_every_function_an_entry() -> None:
    for family in FAMILIES:
        module = importlib.import_module(f"kveval.report.figures.{family}")
        drawing = {
            name
            for name, found in inspect.getmembers(module, inspect.isfunction)
            if found.__module__ == module.__name__ and found.__annotations__["return"] == "Figure"
        }
        assert drawing == {entry.key for entry in FIGURES if entry.family == family}
    captions = {figure.caption for figure in figures_of(MODELS)}
    assert len(captions) == len(FIGURES)
    assert all(re.fullmatch(r"[A-Z].{30,}\.", caption) for caption in captions)


def test_a_function_an_entry_and_a_caption_make_a_figure_of_the_report(
    data: FigureData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def levels_by_run(data: FigureData) -> Figure:
        figure, grid = panels(data, (1, 1), (4, 3))
        grid[0, 0].plot(data.levels["run"], data.levels["level"])
        return figure

    caption = "Every level of every run."
    (tmp_path / "levels_by_run.rst").write_text(f"{caption}\n")
    monkeypatch.setattr(names, "CAPTIONS", tmp_path)
    monkeypatch.setattr(names, "FIGURES", (names.FigureEntry("levels_by_run", "latency", "system", "Levels by run"),))
    monkeypatch.setattr(latency, "levels_by_run", levels_by_run, raising=False)
    assert write_figures(data, {name: [tmp_path / f"{name}.png"] for name in figure_names(MODELS)}) == {}
    assert (tmp_path / "levels_by_run.png").stat().st_size > 2000
    keys = campaign.cells(MODELS, ARMS)
    write_report(
        campaign.plan(keys), campaign.measured(data.levels), [tmp_path / "levels_by_run.png"], tmp_path / "REPORT.md"
    )
    shown = (tmp_path / "appendix" / "system.md").read_text(encoding="utf-8")
    assert f"![Levels by run](../levels_by_run.png)\n\n*Levels by run.* {caption}" in shown


def test_names_with_a_model_stand_for_one_figure_per_model() -> None:
    names = figure_names([*MODELS, MODELS[0]])
    assert len(names) == len(set(names))
    assert [name for name in names if name.startswith("throughput_curve")] == [
        "throughput_curve_Qwen3-0.6B_all",
        "throughput_curve_Qwen3-14B_all",
    ]
    found = find_figure("throughput_curve_Qwen3-14B_all", MODELS)
    assert found
    assert (found.family, found.model) == ("throughput", "Qwen3-14B")


@pytest.mark.parametrize("name", figure_names(MODELS[1:]))
def test_every_figure_draws_with_its_units_and_its_footer(name: str, data: FigureData, tmp_path: Path) -> None:
    figure = draw(name, data)
    output = tmp_path / f"{name}.png"
    figure.savefig(output, dpi=DPI)
    image = matplotlib.image.imread(output)
    assert min(image.shape[:2]) > 1.25 * DPI
    assert image.shape[1] <= 10.6 * DPI
    assert image[..., :3].std() > 0.02
    said = texts(figure)
    assert data.footer in " ".join(said)
    assert any(re.search(r"tok/s|\bms\b|, s\b|%|GiB|requests|tokens|ln throughput", text) for text in said)
    assert not any("not recorded" in text for text in said), "the data have everything"


@pytest.mark.parametrize(
    "name", ["throughput_curve_Qwen3-14B_all", "timeseries_Qwen3-14B", "performance_delta_heatmap_all", "working_set"]
)
def test_the_same_data_give_the_same_bytes(name: str, small: FigureData, tmp_path: Path) -> None:
    one, two = ([tmp_path / f"{number}.{suffix}" for suffix in ("png", "svg")] for number in ("one", "two"))
    for outputs in (one, two):
        write_figure(name, small, outputs)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_an_arm_looks_the_same_in_every_campaign_and_unlike_the_others(data: FigureData) -> None:
    arms = list(campaign.ARMS)
    assert len({look_of(arm).colour for arm in arms}) == len({look_of(arm).marker for arm in arms}) == len(arms)
    fewer = dataclasses.replace(data, levels=data.levels[data.levels["scenario"] == "lmcache-valkey"])
    assert fewer.look(ArmSize("lmcache-valkey", 10_000)) == data.look(ArmSize("lmcache-valkey", 10_000))


def test_known_arms_differ_in_brightness_or_marker_for_those_who_see_no_colour() -> None:
    def brightness(colour: str) -> float:
        return sum(weight * int(colour[at : at + 2], 16) for weight, at in ((0.299, 1), (0.587, 3), (0.114, 5)))

    looks = [look_of(arm) for arm in campaign.ARMS]
    pairs = [(one, other) for one in looks for other in looks if one is not other]
    assert all(
        one.marker != other.marker or abs(brightness(one.colour) - brightness(other.colour)) > 20
        for one, other in pairs
    )


def test_a_derived_arm_resembles_its_origin_and_differs_from_it() -> None:
    derived, origin = look_of("native-offload-mempress"), look_of("native-offload")
    assert derived.marker == origin.marker
    assert derived.colour != origin.colour
    assert look_of("something-else") == look_of("something-else")
    assert rank_of("native-offload-mempress") < rank_of("lmcache-local") < rank_of("something-else")


def test_tiers_of_one_arm_share_its_colour_and_differ_in_line_and_filling(data: FigureData) -> None:
    one, two = data.look(ArmSize("native-offload", 10_000)), data.look(ArmSize("native-offload", 20_000))
    assert (one.colour, one.marker) == (two.colour, two.marker)
    assert one.line != two.line
    assert one.fill != two.fill


def test_models_stand_by_size_and_cells_in_their_fixed_order(data: FigureData) -> None:
    backwards = dataclasses.replace(data, levels=data.levels.iloc[::-1])
    assert backwards.models == list(MODELS)
    assert [cell.label for cell in backwards.cells_of("Qwen3-14B")][:3] == [
        "no-offload",
        "native-offload 10K",
        "native-offload 20K",
    ]
    assert by_size(["unknown", "b", "a"], {"a": 7, "b": 7}) == ["a", "b", "unknown"]


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        (ArmSize("no-offload", 0), "no-offload"),
        (ArmSize("a", 10_000), "a 10K"),
        (ArmSize("a", 500), "a 500"),
        (ArmSize("a", 1500), "a 1500"),
    ],
)
def test_labels(cell: ArmSize, label: str) -> None:
    assert cell.label == label


def test_what_was_not_recorded_is_said_and_not_drawn_as_zero(data: FigureData, tmp_path: Path) -> None:
    levels = data.levels.assign(kv_cache_usage_percent=np.nan, server_rss_gib=np.nan)
    levels.loc[levels["model"] == MODELS[0], "requests_waiting"] = np.nan
    bare = dataclasses.replace(data, levels=levels, recordings={}, tiers={}, metrics={})
    assert "server resident, GiB" not in texts(draw("pcp_memory_usage", bare))
    assert "not recorded" in texts(draw("pcp_request_queues", bare))
    empty = ("pcp_kv_cache_usage", "timeseries_Qwen3-14B", "percpu_saturation", "working_set", "pcp_lmcache")
    reasons = write_figures(bare, {name: [tmp_path / f"{name}.png"] for name in (*empty, "pcp_memory_usage")})
    assert reasons["pcp_kv_cache_usage"].endswith("windows: kv_cache_usage_percent")
    assert set(reasons) == set(empty)
    assert all((tmp_path / f"{name}.png").stat().st_size > 2000 for name in empty)


def test_where_the_cpu_is_the_device_its_utilisation_is_drawn(data: FigureData) -> None:
    said = texts(draw("pcp_gpu_vs_throughput", dataclasses.replace(data, device="CPU")))
    (cpu_time,) = {text for text in said if text.startswith("CPU time")}
    assert cpu_time.endswith(" the device)")


def test_one_run_of_one_cell_is_enough_for_every_figure() -> None:
    levels = levels_table(runs=1, effects={"no-offload": 0.0}, levels=(4,))
    data = FigureData(levels, peaks_table(levels), comparison_table(levels), "", baselines=frozenset({"no-offload"}))
    for name in figure_names(data.models):
        with contextlib.suppress(NothingToDraw):
            assert draw(name, data).axes


def test_levels_that_failed_do_not_stop_a_figure(small: FigureData) -> None:
    levels = small.levels.copy()
    numbers = [name for name in levels if name.endswith(("_tok_s", "_percent", "_gib")) or "_ms_" in name]
    levels.loc[levels["scenario"] == "lmcache-redis", numbers] = np.nan
    levels["window_start"] = levels["window_start"].where(levels["scenario"] != "lmcache-redis")
    failed = dataclasses.replace(small, levels=levels, peaks=small.peaks[small.peaks["scenario"] != "lmcache-redis"])
    for name in figure_names(MODELS[1:]):
        assert draw(name, failed).axes


def test_comparisons_of_arms_with_each_other_stay_out_of_the_effect_plot(data: FigureData) -> None:
    contrast = data.comparison.assign(baseline="Qwen3-14B/lmcache-redis/10000", effect_percent=77.0)
    both = dataclasses.replace(data, comparison=pd.concat([contrast, data.comparison]))
    assert "+77" not in texts(draw("performance_delta_heatmap_all", both))


def test_an_unknown_figure_names_the_known_ones(data: FigureData) -> None:
    with pytest.raises(FigureError, match="effect_plot"):
        draw("throughput_curve_other_all", data)
