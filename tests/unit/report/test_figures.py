import contextlib
import dataclasses
import functools
import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.image
import matplotlib.text
import msgspec
import numpy as np
import pandas as pd
import pytest
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from tests.support import synthetic_campaign as campaign
from tests.support.synthetic import comparison_table, levels_table, peaks_table
from tests.support.synthetic_value import with_goodput

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured
from kveval.report.data.figures import FigureData
from kveval.report.data.run_facts import Tiers, tiers_of
from kveval.report.data.style import arm_style
from kveval.report.facts import answer
from kveval.report.figures import arms, names
from kveval.report.figures.axes import NARROW_WIDTH, WIDTH, NothingToDraw
from kveval.report.figures.draw import (
    STYLE,
    FigureError,
    draw,
    write_family,
    write_figure,
)
from kveval.report.figures.names import (
    FAMILIES,
    FIGURES,
    Extent,
    NotDrawnError,
    drawn_figure,
    drawn_figures,
    families_of,
    figure_names,
    figures_of,
    find_figure,
)
from kveval.report.html.page import data_uri
from kveval.report.report import write_report
from kveval.tables.cells import models_by_size, rank_of

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
def wide(data: FigureData) -> Callable[[str], Figure]:
    """Draws a figure of all the data, once for all tests: they change nothing of it."""
    return functools.cache(lambda name: draw(name, data))


@pytest.fixture
def coarse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files of figures drawn with few pixels, for tests that do not look at them."""
    style = tmp_path / "coarse.mplstyle"
    style.write_text(f"{STYLE.read_text()}\nsavefig.dpi: 40\n")
    monkeypatch.setattr("kveval.report.figures.draw.STYLE", style)


@pytest.fixture(scope="module")
def small(recording: Path) -> FigureData:
    """One model with three arms: what does not depend on how many there are is told sooner."""
    return made_of(
        campaign.cells(MODELS[1:], ("no-offload", "native-offload", "lmcache-redis")),
        recording,
    )


def made_of(
    cells: list[Cell], recording: Path, levels: Sequence[int] = LEVELS
) -> FigureData:
    table = campaign.levels_table(cells, levels=levels)
    table = table.assign(lmcache_hit_tok_s=table["external_cache_hit_percent"])
    if len(levels) > 1:
        table = with_goodput(table, lambda _, level: 1 / (1 + level / 100))
    return figure_data_of(campaign.with_reuse(campaign.measured(table)), recording)


def figure_data_of(measured: Measured, recording: Path) -> FigureData:
    """What figures are drawn from, with one recording for all runs."""
    return FigureData(
        measured.levels,
        measured.peaks,
        measured.comparison,
        "kubernetes engine, full weights · 48 CPUs",
        runs=measured.runs,
        parameters=campaign.PARAMETERS,
        baselines=frozenset({"no-offload"}),
        tiers={run.cell: tiers_of(run) for run in measured.runs},
        recordings={(run.cell, run.run): recording for run in measured.runs},
        metrics={
            **campaign.METRICS,
            "lmcache_hit_tok_s": {"title": "LMCache hits", "unit": "tok/s"},
        },
        predicted_hits=measured.predicted_hits,
        hits=measured.hits,
        waterfall=measured.waterfall,
    )


def title_of(name: str) -> str:
    found = find_figure(name, MODELS)
    assert found
    assert "?" in found.title
    return found.title


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(matplotlib.text.Text)}


def assert_texts_have_room(figure: Figure) -> None:
    """No text of a panel is cut off, or lies over another panel's."""
    places = [axes.get_tightbbox() for axes in figure.axes if axes.axison]
    for place in places:
        assert place.x0 >= 0
        assert place.x1 <= figure.bbox.x1
        assert place.y0 >= 0
    for place, beside in itertools.combinations(places, 2):
        across = min(place.x1, beside.x1) - max(place.x0, beside.x0)
        down = min(place.y1, beside.y1) - max(place.y0, beside.y0)
        assert min(across, down) < 1


def words_of(figure: Figure) -> set[str]:
    return {word for text in texts(figure) for word in text.split()}


def test_a_figure_says_how_large_the_tiers_are(
    data: FigureData, wide: Callable[[str], Figure]
) -> None:
    of_both = "10K is 17.1 to 24.4 GiB (10,000 blocks), 20K is 48.8 GiB (20,000 blocks)"
    assert f"tiers in host memory: {of_both}" in texts(wide("effect_plot"))
    of_one = wide("throughput_curve_Qwen3-0.6B_all")
    assert "tiers in host memory: 10K is 17.1 GiB (10,000 blocks)" in texts(of_one)
    capacities = texts(wide("working_set"))
    assert {
        "17.1 GiB (10,000 blocks): 160,000",
        "24.4 GiB (10,000 blocks): 160,000",
    } < capacities
    without = dataclasses.replace(data, runs=())
    assert not any("tiers in" in text for text in texts(draw("effect_plot", without)))


def test_sizes_of_tiers_have_an_axis_of_gib_and_one_of_blocks(
    wide: Callable[[str], Figure],
) -> None:
    figure = wide("reuse_by_tier_size")
    figure.draw_without_rendering()
    panel = figure.axes[0]
    (below,) = panel.child_axes
    assert (below.get_xlabel(), panel.get_xlabel()) == (
        "size of the tier, GiB",
        "blocks",
    )
    ends = np.array(panel.get_xlim()) * 16 * 114_688 / 2**30
    assert np.allclose(below.get_xlim(), ends)


def test_what_is_said_above_a_function_is_read_from_its_text() -> None:
    for family in FAMILIES:
        module = importlib.import_module(f"kveval.report.figures.{family}")
        drawing = {
            name
            for name, found in inspect.getmembers(module, inspect.isfunction)
            if found.__module__ == module.__name__
            and found.__annotations__["return"] == "Figure"
            and not name.startswith("_")
        }
        assert drawing == {entry.key for entry in FIGURES if entry.family == family}
    assert {*FAMILIES} == {
        file.stem
        for file in Path(names.__file__).parent.glob("*.py")
        if "@figure(" in file.read_text(encoding="utf-8")
    }
    captions = {figure.caption for figure in figures_of(MODELS)}
    assert len(captions) == len(FIGURES)
    assert all(re.fullmatch(r"[A-Z].{30,}\.", caption) for caption in captions)


def test_a_field_that_a_figure_does_not_have_is_an_error() -> None:
    with pytest.raises(TypeError, match="width"):
        names.figure(title="?", section="system", caption="", width=3)(draw)


LEVELS_BY_RUN = """
from kveval.report.figures.axes import panels
from kveval.report.figures.names import figure

@figure(title="Levels by run", section="system", caption="Every level " "of every run.")
def levels_by_run(data):
    figure, grid = panels(data, (1, 1), 3)
    grid[0, 0].plot(data.levels["run"], data.levels["level"])
    return figure
"""


def test_a_decorated_function_is_a_figure_of_the_report(
    data: FigureData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "arms.py").write_text(LEVELS_BY_RUN)
    declared = (*names.declared_figures(tmp_path / "arms.py"),)
    monkeypatch.setattr(names, "FIGURES", declared)
    drawing: dict[str, Callable[[FigureData], Figure]] = {}
    exec(LEVELS_BY_RUN, drawing)
    monkeypatch.setattr(arms, "levels_by_run", drawing["levels_by_run"], raising=False)
    write_family("arms", data, tmp_path)
    assert drawn_figures([tmp_path]) == ([tmp_path / "levels_by_run.png"], {})
    assert (tmp_path / "levels_by_run.png").stat().st_size > 2000
    keys = campaign.cells(MODELS, ARMS)
    write_report(
        campaign.plan(keys),
        campaign.measured(data.levels),
        [tmp_path / "levels_by_run.png"],
        tmp_path / "REPORT.md",
    )
    shown = (tmp_path / "appendix" / "system.md").read_text(encoding="utf-8")
    # The figure has its title in it.
    caption = "Every level of every run."
    assert f"![Levels by run](../levels_by_run.png)\n\n{caption}" in shown


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
def test_every_figure_draws_with_its_units_and_its_footer(
    name: str, data: FigureData, wide: Callable[[str], Figure], tmp_path: Path
) -> None:
    figure = wide(name)
    output = tmp_path / f"{name}.png"
    figure.savefig(output, dpi=DPI)
    image = matplotlib.image.imread(output)
    assert min(image.shape[:2]) > 1.25 * DPI
    assert image.shape[1] == WIDTH * DPI
    assert image[..., :3].std() > 0.02
    assert_texts_have_room(figure)
    said = texts(figure)
    assert title_of(name) in said
    assert data.footer in " ".join(said)
    assert any(
        re.search(r"tok/s|\bms\b|, s\b|%|GiB|requests|tokens|ln throughput", text)
        for text in said
    )
    assert not any("not recorded" in text for text in said), "the data have everything"


@pytest.mark.parametrize(
    "name",
    [
        "throughput_curve_Qwen3-14B_all",
        "level_timeline_Qwen3-14B",
        "performance_delta_heatmap_all",
        "hit_rates_by_tier",
    ],
)
def test_the_same_data_give_the_same_bytes(
    name: str, small: FigureData, tmp_path: Path
) -> None:
    one, two = (
        [tmp_path / f"{number}.{suffix}" for suffix in ("png", "svg")]
        for number in ("one", "two")
    )
    for outputs in (one, two):
        write_figure(name, small, outputs)
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


@pytest.mark.usefixtures("coarse")
def test_a_figure_is_drawn_once_for_each_file(
    small: FigureData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, draw_once = [], Figure.draw

    def count(figure: Figure, renderer: RendererBase) -> None:
        drawn.append(figure)
        draw_once(figure, renderer)

    monkeypatch.setattr(Figure, "draw", count)
    outputs = [tmp_path / "figure.png", tmp_path / "figure.svg"]
    write_figure("throughput_by_arm", small, outputs)
    assert len(drawn) == len(outputs)


def test_an_arm_looks_the_same_in_every_campaign_and_unlike_the_others(
    data: FigureData,
) -> None:
    arms = list(campaign.ARMS)
    assert (
        len({arm_style(arm).colour for arm in arms})
        == len({arm_style(arm).marker for arm in arms})
        == len(arms)
    )
    fewer = dataclasses.replace(
        data, levels=data.levels[data.levels["scenario"] == "lmcache-valkey"]
    )
    assert fewer.style_of(Cell("Qwen3-8B", "lmcache-valkey", 10_000)) == data.style_of(
        Cell("Qwen3-8B", "lmcache-valkey", 10_000)
    )


def test_known_arms_differ_in_brightness_or_marker_for_those_who_see_no_colour() -> (
    None
):
    def brightness(colour: str) -> float:
        return sum(
            weight * int(colour[at : at + 2], 16)
            for weight, at in ((0.299, 1), (0.587, 3), (0.114, 5))
        )

    looks = [arm_style(arm) for arm in campaign.ARMS]
    pairs = [(one, other) for one in looks for other in looks if one is not other]
    assert all(
        one.marker != other.marker
        or abs(brightness(one.colour) - brightness(other.colour)) > 20
        for one, other in pairs
    )


def test_a_derived_arm_resembles_its_origin_and_differs_from_it() -> None:
    derived, origin = arm_style("native-offload-mempress"), arm_style("native-offload")
    assert derived.marker == origin.marker
    assert derived.colour != origin.colour
    assert arm_style("something-else") == arm_style("something-else")
    assert (
        rank_of("native-offload-mempress")
        < rank_of("lmcache-local")
        < rank_of("something-else")
    )


def test_tiers_of_one_arm_share_its_colour_and_differ_in_line_and_filling(
    data: FigureData,
) -> None:
    one, two = (
        data.style_of(Cell("Qwen3-8B", "native-offload", 10_000)),
        data.style_of(Cell("Qwen3-8B", "native-offload", 20_000)),
    )
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
    assert models_by_size(["unknown", "b", "a"], {"a": 7, "b": 7}) == [
        "a",
        "b",
        "unknown",
    ]


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        (Cell("model", "no-offload", 0), "no-offload"),
        (Cell("model", "a", 10_000), "a 10K"),
        (Cell("model", "a", 500), "a 500"),
        (Cell("model", "a", 1500), "a 1500"),
    ],
)
def test_labels(cell: Cell, label: str) -> None:
    assert cell.label == label


@pytest.mark.usefixtures("coarse")
def test_what_was_not_recorded_is_said_and_not_drawn_as_zero(
    data: FigureData, tmp_path: Path
) -> None:
    levels = data.levels.assign(kv_cache_usage_percent=np.nan, server_rss_gib=np.nan)
    levels.loc[levels["model"] == MODELS[0], "requests_waiting"] = np.nan
    bare = dataclasses.replace(data, levels=levels, recordings={}, tiers={}, metrics={})
    assert "server resident, GiB" not in texts(draw("pcp_memory_usage", bare))
    assert "not recorded" in texts(draw("pcp_request_queues", bare))
    write_family("caches", bare, tmp_path / "caches")
    write_family("recordings", bare, tmp_path / "recordings")
    drawn, lacking = drawn_figures([tmp_path / "caches", tmp_path / "recordings"])
    assert set(lacking) == {"pcp_kv_cache_usage", "working_set", "pcp_lmcache"} | {
        f"level_timeline_{model}" for model in MODELS
    }
    assert lacking["pcp_kv_cache_usage"].endswith("windows: kv_cache_usage_percent")
    assert set(tmp_path.rglob("*.png")) == set(drawn)
    assert {path.stem for path in drawn} == {
        *(
            "hit_rates_by_tier",
            "reuse_by_tier_size",
            "pcp_prefix_cache_hits",
            "pcp_offload_traffic",
        ),
    }
    with pytest.raises(NotDrawnError) as error:
        drawn_figure(tmp_path / "caches", "working_set.png")
    assert error.value.facts["reason"] == lacking["working_set"]


def test_where_the_cpu_is_the_device_its_utilisation_is_drawn(data: FigureData) -> None:
    said = texts(draw("pcp_gpu_vs_throughput", dataclasses.replace(data, device="CPU")))
    (cpu_time,) = {text for text in said if text.startswith("CPU time")}
    assert cpu_time.endswith(" the device)")


def test_one_run_of_one_cell_is_enough_for_every_figure() -> None:
    levels = levels_table(runs=1, effects={"no-offload": 0.0}, levels=(4,))
    data = FigureData(
        levels,
        peaks_table(levels),
        comparison_table(levels),
        "",
        baselines=frozenset({"no-offload"}),
    )
    for name in figure_names(data.models):
        with contextlib.suppress(NothingToDraw):
            assert draw(name, data).axes


def test_levels_that_failed_do_not_stop_a_figure(small: FigureData) -> None:
    levels = small.levels.copy()
    numbers = [
        name
        for name in levels
        if name.endswith(("_tok_s", "_percent", "_gib")) or "_ms_" in name
    ]
    levels.loc[levels["scenario"] == "lmcache-redis", numbers] = np.nan
    levels["window_start"] = levels["window_start"].where(
        levels["scenario"] != "lmcache-redis"
    )
    failed = dataclasses.replace(
        small,
        levels=levels,
        peaks=small.peaks[small.peaks["scenario"] != "lmcache-redis"],
    )
    for name in figure_names(MODELS[1:]):
        assert draw(name, failed).axes


@pytest.mark.parametrize(
    ("levels", "models", "families"),
    [
        (1, 1, {"arms", "caches", "recordings"}),
        (2, 4, {*FAMILIES} - {"throughput", "system"}),
        (8, 4, {*FAMILIES}),
    ],
)
def test_a_plan_leaves_out_families_that_have_no_answer(
    levels: int, models: int, families: set[str]
) -> None:
    assert set(families_of(Extent(levels, models))) == families


@pytest.mark.usefixtures("coarse")
def test_a_campaign_of_one_level_has_the_figures_chosen_for_it(
    recording: Path, tmp_path: Path
) -> None:
    cells = [
        Cell("Qwen3-0.6B", "no-offload", 0),
        Cell("Qwen3-0.6B", "native-offload", 500),
    ]
    one_level = made_of(cells, recording, levels=(2,))
    for family in FAMILIES:
        write_family(family, one_level, tmp_path / family)
    drawn, lacking = drawn_figures(tmp_path / family for family in FAMILIES)
    chosen = [
        "throughput_by_arm",
        "ttft_by_arm",
        "hit_rates_by_tier",
        "reuse_by_tier_size",
    ]
    chosen += ["level_timeline_Qwen3-0.6B"]
    assert ([path.stem for path in drawn], lacking) == (chosen, {})
    assert all(path.with_suffix(".svg").exists() for path in drawn)
    with pytest.raises(NotDrawnError) as error:
        drawn_figure(tmp_path / "arms", "peak_throughput_all_scenarios.png")
    assert error.value.facts["figure"] == "peak_throughput_all_scenarios"


def test_every_run_is_a_dot_beside_the_mean_and_its_interval(recording: Path) -> None:
    data = made_of([Cell("Qwen3-0.6B", "no-offload", 0)], recording, levels=(2,))
    (axes,) = draw("throughput_by_arm", data).axes
    (dots,) = axes.collections
    runs = sorted(data.levels["throughput_tok_s"])
    assert sorted(dots.get_offsets()[:, 0]) == pytest.approx(runs)
    (bar,) = axes.patches
    assert bar.get_width() == pytest.approx(np.exp(np.mean(np.log(runs))))
    (interval,) = axes.lines
    low, high = interval.get_xdata()[[0, -1]]
    assert low < runs[0] < runs[-1] < high


def test_a_level_at_which_no_run_observed_a_first_token_is_an_empty_panel(
    recording: Path,
) -> None:
    data = made_of([Cell("Qwen3-0.6B", "no-offload", 0)], recording, levels=(2, 8))
    levels = data.levels.copy()
    levels.loc[levels["level"] == 8, ["ttft_ms_p50", "ttft_ms_p90"]] = np.nan
    axes = draw("ttft_by_arm", dataclasses.replace(data, levels=levels)).axes
    dots = [len(panel.collections[0].get_offsets()) for panel in axes]
    assert dots == [len(levels) // 2] * 2 + [0] * 2


@pytest.mark.parametrize("spread", [1.2, 1.9, 3.0])
def test_an_interval_ends_before_its_label_or_goes_on_with_an_arrow(
    spread: float,
) -> None:
    """A label on the interval's end would make one that ends there look like one that goes on."""
    levels = levels_table(effects={"no-offload": 0.0}, levels=(32,))
    levels = levels[levels["run"] <= 3]
    levels["throughput_tok_s"] = 100.0 * spread ** np.array([0.0, 0.5, 1.0])
    data = FigureData(
        levels, peaks_table(levels), comparison_table(levels), "", baselines=frozenset()
    )
    figure = draw("throughput_by_arm", data)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    interval, *arrows = axes.lines
    edge = axes.get_xlim()[1]
    beyond = interval.get_xdata()[1] > edge
    assert beyond == (spread == 3.0)
    assert [(arrow.get_marker(), arrow.get_xdata()[0]) for arrow in arrows] == (
        [(">", edge)] if beyond else []
    )
    (label,) = axes.texts
    # At the end of the interval its place would be read as that of the bar's end.
    assert axes.bbox.x1 < label.get_window_extent().x0
    assert label.get_window_extent().x1 < figure.bbox.x1


def test_runs_with_the_same_value_are_seen_beside_each_other() -> None:
    levels = levels_table(effects={"no-offload": 0.0}, levels=(32,))
    levels = levels[levels["run"] <= 3].assign(throughput_tok_s=100.0)
    figure = draw("throughput_by_arm", alone(levels))
    (axes,) = figure.axes
    (dots,) = axes.collections
    places = axes.transData.transform(dots.get_offsets())[:, 1]
    # Points of 1/72 inch; a dot is some 4 wide.
    assert (np.abs(np.diff(places)) * 72 / figure.dpi > 3).all()


def alone(levels: pd.DataFrame) -> FigureData:
    """What is drawn of these levels, compared with no-offload, where nothing else is known."""
    tables = peaks_table(levels), comparison_table(levels)
    return FigureData(levels, *tables, "", baselines=frozenset({"no-offload"}))


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for key in figure.legends for text in key.get_texts()]


@pytest.mark.parametrize("runs", [1, 3])
def test_a_legend_names_only_what_is_drawn(runs: int) -> None:
    effects = {"no-offload": 0.0, "native-offload": 0.5}
    levels = levels_table(effects=effects, levels=(1, 8, 32), runs=runs)
    data = alone(levels)
    of_runs = ["mean over runs", "95 % interval"] if runs > 1 else []
    for name in ("throughput_by_arm", "peak_throughput_all_scenarios"):
        assert legend_of(draw(name, data)) == [*of_runs, "single run"]
    latencies = legend_of(draw("latency_comparison_all", data))
    assert latencies == ["median", "P90", *of_runs[1:]]
    verdicts = legend_of(draw("effect_plot", data))
    expected = ["better", "interval over runs"]
    assert verdicts == (expected if runs > 1 else ["no verdict"])
    tiers = {Cell("Qwen3-0.6B", "no-offload", 0): Tiers(640, 0, {1: 100})}
    without_tier = draw("working_set", dataclasses.replace(data, tiers=tiers))
    assert legend_of(without_tier) == ["distinct prefixes", "device cache"]


def test_a_bar_is_the_mean_of_the_runs_that_the_verdict_rests_on() -> None:
    levels = levels_table(
        effects={"no-offload": 0.0, "native-offload": 0.06}, levels=(32,)
    )
    broken = (levels["scenario"] == "native-offload") & (levels["run"] > 3)
    levels.loc[broken, "throughput_tok_s"] /= 3
    levels.loc[broken, "checks_failed"] = "errors"
    compared = comparison_table(levels)
    data = FigureData(
        levels, peaks_table(levels), compared, "", baselines=frozenset({"no-offload"})
    )
    figure = draw("throughput_by_arm", data)
    assert legend_of(figure)[-1] == "run that comparisons leave out"
    (axes,) = figure.axes
    hollow = [
        sum((dots.get_facecolor()[:, :3] == 1).all(axis=1)) for dots in axes.collections
    ]
    # Runs are left out in pairs.
    assert hollow == [broken.sum(), broken.sum()]
    baseline, arm = (bar.get_width() for bar in axes.patches)
    assert arm / baseline - 1 == pytest.approx(compared.iloc[0]["effect_percent"] / 100)
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == len(levels)


@pytest.mark.parametrize("counted", [True, False])
def test_shares_of_the_tiers_are_of_all_prompt_tokens(
    data: FigureData, counted: bool
) -> None:
    if not counted:
        # A run whose device's share was not recorded counts for none of the shares.
        device = data.levels["prefix_cache_hit_percent"].mask(data.levels["run"] == 1)
        data = dataclasses.replace(
            data,
            waterfall=pd.DataFrame(),
            levels=data.levels.assign(prefix_cache_hit_percent=device),
        )
    one = data.levels[
        (data.levels["model"] == MODELS[1])
        & (data.levels["scenario"] == "native-offload")
    ]
    level = data.common_level(MODELS[1])
    one = one[(one["level"] == level) & (one["cpu_blocks"] == 20_000)]
    device, asked = one["prefix_cache_hit_percent"], one["external_cache_hit_percent"]
    axes = draw("hit_rates_by_tier", data).axes[1]
    place = [cell.label for cell in data.cells_of(MODELS[1])].index(
        "native-offload 20K"
    )
    widths = [
        bar.get_width()
        for bar in axes.patches
        if round(bar.get_y() + bar.get_height() / 2) == place
    ]
    behind = (asked * (100 - device) / 100).mean()
    served = device.mean() + behind
    # What was not served: of nine tenths that came before, and of the rest; or nobody says.
    new = 100 - np.maximum(device + asked * (100 - device) / 100, 90).mean()
    lost = [0, 0, 100 - served - new, new] if counted else [100 - served]
    assert widths == pytest.approx([device.mean(), behind, 0, *lost], abs=1e-9)
    assert "store behind it" not in texts(draw("hit_rates_by_tier", data))


def test_a_drawing_of_shares_is_small_enough_for_the_page(
    data: FigureData, tmp_path: Path
) -> None:
    write_figure("hit_rates_by_tier", data, [tmp_path / "hit_rates_by_tier.svg"])
    uri = data_uri(tmp_path / "hit_rates_by_tier.png")
    assert uri.startswith("data:image/svg+xml")
    assert len(uri) < 90_000


def test_comparisons_of_arms_with_each_other_stay_out_of_the_effect_plot(
    data: FigureData,
) -> None:
    contrast = data.comparison.assign(
        baseline="Qwen3-14B/lmcache-redis/10000", effect_percent=77.0
    )
    both = dataclasses.replace(data, comparison=pd.concat([contrast, data.comparison]))
    assert "+77" not in texts(draw("performance_delta_heatmap_all", both))


def test_what_may_accompany_the_answer_is_drawn_for_narrow_screens() -> None:
    entries = {figure.name: figure.entry for figure in figures_of(MODELS)}
    assert all(entries[name].narrow for name in (*answer.FIGURES, answer.OF_MODELS))


@pytest.mark.parametrize(
    "name",
    [figure.name for figure in figures_of(MODELS) if figure.entry.narrow],
)
def test_a_figure_for_narrow_screens_has_its_panels_below_each_other(
    name: str, data: FigureData
) -> None:
    figure = draw(name, dataclasses.replace(data, narrow=True))
    assert figure.get_figwidth() == NARROW_WIDTH
    figure.draw_without_rendering()
    panels_of = [axes for axes in figure.axes if axes.get_subplotspec()]
    assert {axes.get_subplotspec().colspan.start for axes in panels_of} == {0}
    assert_texts_have_room(figure)
    assert not {title_of(name), data.footer} & texts(figure)
    lacking = words_of(draw(name, data)) - words_of(figure)
    assert lacking <= {*title_of(name).split(), *data.footer.split()}


def test_a_long_name_leaves_room_for_its_panel() -> None:
    names = {"no-offload": 0.0, "a-scenario-of-ours-that-has-a-rather-long-name": 0.1}
    data = alone(levels_table(effects=names, levels=(1, 8, 32)))
    for name in ("peak_throughput_all_scenarios", "latency_comparison_all"):
        figure = draw(name, dataclasses.replace(data, narrow=True))
        assert_texts_have_room(figure)
        assert figure.axes[0].get_position().width * NARROW_WIDTH > 0.3


@pytest.mark.parametrize(
    ("units", "end_at_the_whole"),
    [
        ({}, [False, True, False, True]),
        (
            {
                "requests_running": "percent",
                "requests_waiting": "percent",
                "cpu_utilisation_percent": "cores",
            },
            [False, True, True, False],
        ),
    ],
)
def test_a_panel_of_a_timeline_ends_at_the_whole_where_its_metrics_are_in_percent(
    small: FigureData, units: dict[str, str], end_at_the_whole: list[bool]
) -> None:
    (model,) = small.models
    metrics = {
        name: {**entry, "unit": units.get(name, entry["unit"])}
        for name, entry in small.metrics.items()
    }
    figure = draw(
        f"level_timeline_{model}", dataclasses.replace(small, metrics=metrics)
    )
    first_row = figure.axes[: len(end_at_the_whole)]
    assert [axes.get_ylim() == (0, 105) for axes in first_row] == end_at_the_whole


@pytest.mark.parametrize(
    ("kept", "failed", "name"),
    [
        ("1;2;3", [], "run 1"),
        ("1;2;3", [1], "run 2"),
        ("2;3", [], "run 2"),
        ("4", [], "run 1, left out"),
        ("1;2;3", [1, 2, 3], "run 1, failed checks"),
        ("", [1, 2], "run 3"),
    ],
)
def test_a_timeline_is_of_a_run_that_comparisons_keep_and_names_it(
    kept: str, failed: list[int], name: str, small: FigureData
) -> None:
    checks = np.where(small.levels["run"].isin(failed), "errors", "")
    table = small.comparison.assign(runs_kept=kept, baseline_runs_kept=kept)
    data = dataclasses.replace(
        small, comparison=table, levels=small.levels.assign(checks_failed=checks)
    )
    said = texts(draw("level_timeline_Qwen3-14B", data))
    assert f"native-offload 10K\n{name}" in said


def test_a_timeline_names_only_lines_that_were_recorded(small: FigureData) -> None:
    metrics = {**small.metrics}
    del metrics["requests_waiting"]
    data = dataclasses.replace(small, metrics=metrics)
    said = texts(draw("level_timeline_Qwen3-14B", data))
    assert "requests:\nrunning (line)" in said


def test_sizes_of_tiers_are_in_blocks_where_the_bytes_of_a_token_are_not_known(
    small: FigureData,
) -> None:
    runs = [
        msgspec.structs.replace(run, specification={"model": {}}) for run in small.runs
    ]
    figure = draw("reuse_by_tier_size", dataclasses.replace(small, runs=runs))
    assert figure.axes[0].get_xlabel() == "size of the tier, blocks"
    assert not figure.axes[0].child_axes


def test_an_unknown_figure_names_the_known_ones(data: FigureData) -> None:
    with pytest.raises(FigureError, match="effect_plot"):
        draw("throughput_curve_other_all", data)
