from pathlib import Path

import matplotlib.image
import matplotlib.text
import pandas as pd
import pytest
from matplotlib.figure import Figure
from tests.synthetic import comparison_table, levels_table, peaks_table

from kveval.figure_names import figure_names
from kveval.figures import REGISTRY, FigureError, caption, draw, write_figure
from kveval.plotting import Cell, FigureData

MODELS = ("Qwen3-0.6B", "Qwen3-8B")


@pytest.fixture(scope="module")
def data() -> FigureData:
    levels = levels_table(MODELS, runs=3)
    return FigureData(
        levels,
        peaks_table(levels),
        comparison_table(levels),
        "local engine, miniature · 2 CPUs",
        frozenset({"no-offload"}),
    )


def texts(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.findobj(matplotlib.text.Text)}


def test_the_names_are_the_registry_and_a_curve_per_model() -> None:
    names = figure_names([*MODELS, MODELS[0]])
    assert names == [*REGISTRY, "throughput_curve_Qwen3-0.6B_all", "throughput_curve_Qwen3-8B_all"]


@pytest.mark.parametrize("name", figure_names(MODELS))
def test_every_figure_draws_with_its_units_and_its_footer(name: str, data: FigureData, tmp_path: Path) -> None:
    output = tmp_path / f"{name}.png"
    write_figure(name, data, [output])
    image = matplotlib.image.imread(output)
    assert min(image.shape[:2]) > 200
    assert image[..., :3].std() > 0.02
    said = texts(draw(name, data))
    assert data.footer in " ".join(said)
    assert any(word in text for text in said for word in ("tok/s", "ms", "%", "GiB", "requests"))
    title, words = caption(name)
    assert title
    assert words


def test_the_same_data_give_the_same_bytes(data: FigureData, tmp_path: Path) -> None:
    for suffix in ("png", "svg"):
        one, two = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
        write_figure("throughput_curve_Qwen3-8B_all", data, [one])
        write_figure("throughput_curve_Qwen3-8B_all", data, [two])
        assert one.read_bytes() == two.read_bytes()


def test_a_cell_looks_the_same_everywhere_and_unlike_the_others(data: FigureData) -> None:
    looks = {cell: data.look(cell) for cell in data.cells}
    assert len({look.colour for look in looks.values()}) == len(data.cells)
    fewer = FigureData(data.levels, data.peaks, data.comparison, "", data.baselines)
    assert {cell: fewer.look(cell) for cell in fewer.cells} == looks


def test_tiers_of_one_scenario_share_its_colour_and_not_its_marker() -> None:
    levels = levels_table(runs=1, effects={"no-offload": 0.0, "native-offload": 0.1})
    more = levels[levels["scenario"] == "native-offload"].assign(cpu_blocks=20_000)
    both = pd.concat([levels, more])
    data = FigureData(both, peaks_table(both), comparison_table(levels), "", frozenset({"no-offload"}))
    one, two = data.look(Cell("native-offload", 10_000)), data.look(Cell("native-offload", 20_000))
    assert one.colour == two.colour
    assert (one.marker, one.line) != (two.marker, two.line)


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        (Cell("no-offload", 0), "no-offload"),
        (Cell("a", 10_000), "a 10K"),
        (Cell("a", 500), "a 500"),
        (Cell("a", 1500), "a 1500"),
    ],
)
def test_labels(cell: Cell, label: str) -> None:
    assert cell.label == label


def test_what_was_not_recorded_is_said_and_not_drawn_as_zero(data: FigureData) -> None:
    levels = data.levels.assign(kv_cache_usage_percent=float("nan"))
    empty = FigureData(levels, data.peaks, data.comparison, data.footer, data.baselines)
    assert "not recorded: kv_cache_usage_percent" in texts(draw("pcp_kv_cache_usage", empty))
    assert "server resident, GiB" not in texts(draw("pcp_memory_usage", data))


def test_one_run_of_one_cell_is_enough_for_every_figure() -> None:
    levels = levels_table(runs=1, effects={"no-offload": 0.0}, levels=(4,))
    data = FigureData(levels, peaks_table(levels), comparison_table(levels), "", frozenset({"no-offload"}))
    for name in figure_names(data.models):
        assert draw(name, data).axes


def test_an_unknown_figure_names_the_known_ones(data: FigureData) -> None:
    with pytest.raises(FigureError, match="effect_plot"):
        draw("throughput_curve_other_all", data)
