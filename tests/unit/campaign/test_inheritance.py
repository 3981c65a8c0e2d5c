"""Campaigns that extend others: what is taken over, what is not, and whose mistake is whose."""

import copy

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.config_files import CONFIG, RAW, dump

from kveval.campaign.inheritance import campaign_values, read_campaign
from kveval.campaign.problems import ConfigError, ConfigProblem
from kveval.configuration.loading import load_config

BASE = RAW["config"]
ADDED = [
    {"models": ["Qwen3-0.6B"], "scenarios": ["native-offload"], "cpu_blocks": [20000]}
]


@pytest.fixture
def campaigns(tmp_path):
    """Write campaigns by name and return the folder."""

    def write(**contents):
        for name, content in contents.items():
            (tmp_path / f"{name}.yaml").write_text(
                content if isinstance(content, str) else dump(content)
            )
        return tmp_path

    return write


def problems(path):
    with pytest.raises(ConfigError) as caught:
        load_config(path, CONFIG)
    return {
        (problem.file.rpartition("/")[2], problem.key): problem
        for problem in caught.value.problems
    }


def test_mappings_merge_and_everything_else_is_replaced(campaigns):
    folder = campaigns(
        base=BASE,
        child={
            "extends": "base",
            "name": "child",
            "server": {"vllm": "0.31.0"},
            "comparison": {"margin": 0.1},
            "secrets": ["OTHER"],
        },
    )
    config = load_config(folder / "child.yaml", CONFIG).campaign
    base = load_config(folder / "base.yaml", CONFIG).campaign
    assert config.server == base.server.model_copy(update={"vllm": "0.31.0"})
    assert (config.comparison.margin, config.comparison.level) == (
        0.1,
        base.comparison.level,
    )
    assert config.secrets == ("OTHER",)
    assert config.matrix == base.matrix


def test_a_campaign_says_itself_which_one_it_is(campaigns):
    folder = campaigns(
        base={**BASE, "results": "results/base"},
        child={"extends": "base", "name": "child"},
    )
    config = load_config(folder / "child.yaml", CONFIG).campaign
    assert (config.name, config.title, config.description) == ("child", "", "")
    assert config.results == "results/campaigns/child"
    folder = campaigns(nameless={"extends": "base"})
    assert problems(folder / "nameless.yaml").keys() == {("nameless.yaml", "name")}


def test_a_campaign_without_a_folder_does_not_write_into_that_of_the_default_campaign(
    campaigns,
):
    folder = campaigns(
        alone={key: value for key, value in BASE.items() if key != "results"}
        | {"name": "alone"}
    )
    assert (
        load_config(folder / "alone.yaml", CONFIG).campaign.results
        == "results/campaigns/alone"
    )


def test_a_follow_up_may_share_the_folder_of_what_it_extends(campaigns):
    folder = campaigns(
        base=BASE,
        child={"extends": "base", "name": "child", "results": BASE["results"]},
    )
    assert (
        load_config(folder / "child.yaml", CONFIG).campaign.results == BASE["results"]
    )


def test_cells_replace_or_are_added(campaigns):
    folder = campaigns(
        base=BASE,
        adds={"extends": "base", "name": "adds", "add_matrix": ADDED},
        replaces={"extends": "base", "name": "replaces", "matrix": ADDED},
        both={"extends": "base", "name": "both", "matrix": ADDED, "add_matrix": ADDED},
        grandchild={
            "extends": "adds",
            "name": "grandchild",
            "add_matrix": [{**ADDED[0], "cpu_blocks": [40000]}],
        },
        again={"extends": "adds", "name": "again", "add_matrix": ADDED},
        alone={**BASE, "add_matrix": ADDED},
        wrong={"extends": "base", "name": "wrong", "add_matrix": 7},
    )
    base = load_config(folder / "base.yaml", CONFIG)
    added = load_config(folder / "adds.yaml", CONFIG)
    assert [cell.path for cell in added.cells if cell not in base.cells] == [
        "Qwen3-0.6B/native-offload/20000"
    ]
    assert added.cells[: len(base.cells)] == base.cells
    assert [
        cell.cpu_blocks for cell in load_config(folder / "replaces.yaml", CONFIG).cells
    ] == [20000]
    assert (
        len(load_config(folder / "grandchild.yaml", CONFIG).cells)
        == len(base.cells) + 2
    )
    assert (
        problems(folder / "both.yaml")["both.yaml", "add_matrix"].code
        == "beside_matrix"
    )
    again = problems(folder / "again.yaml")["again.yaml", "add_matrix[0]"]
    assert (again.code, "matrix[2]" in again.message) == ("repeated", True)
    assert (
        problems(folder / "alone.yaml")["alone.yaml", "add_matrix"].code
        == "nothing_extended"
    )
    assert problems(folder / "wrong.yaml")["wrong.yaml", "add_matrix"].code == "no_list"


def test_a_campaigns_own_entries_are_extended_key_by_key(campaigns):
    own = {
        "own": {
            "seconds": 9.0,
            "levels": [1, 2],
            "prompt_tokens": 8,
            "output_tokens": 8,
            "seed": 1,
        }
    }
    folder = campaigns(
        base={**BASE, "workloads": own, "workload": "own"},
        child={
            "extends": "base",
            "name": "child",
            "workloads": {"own": {"levels": [4]}},
        },
    )
    workload = load_config(folder / "child.yaml", CONFIG).workload
    assert (workload.levels, workload.seconds) == ((4,), 9.0)


def test_a_mistake_is_named_with_the_file_it_is_in(campaigns):
    base = copy.deepcopy(BASE)
    base["server"]["vllm"] = "new"
    folder = campaigns(
        base=base,
        child={
            "extends": "base",
            "name": "child",
            "runs": 0,
            "server": {"guidellm": "x"},
            "add_matrix": [
                {
                    "models": ["Qwen3-0.7B"],
                    "scenarios": ["native-offload"],
                    "cpu_blocks": [1000],
                }
            ],
        },
    )
    assert problems(folder / "child.yaml").keys() == {
        ("base.yaml", "server.vllm"),
        ("child.yaml", "server.guidellm"),
        ("child.yaml", "runs"),
        ("child.yaml", "add_matrix[0].models[0]"),
    }


def test_a_value_that_is_replaced_is_no_mistake_any_more(campaigns):
    folder = campaigns(
        base={**BASE, "runs": "three"},
        child={"extends": "base", "name": "child", "runs": 3},
    )
    assert load_config(folder / "child.yaml", CONFIG).campaign.runs == 3


@pytest.mark.parametrize(
    ("files", "where", "code", "says"),
    [
        (
            {"child": {"extends": "bass", "name": "child"}},
            ("child.yaml", "extends"),
            "unknown_name",
            "bass",
        ),
        (
            {"child": {"extends": "../base", "name": "child"}},
            ("child.yaml", "extends"),
            "no_name",
            "",
        ),
        (
            {"child": {"extends": 3, "name": "child"}},
            ("child.yaml", "extends"),
            "no_name",
            "",
        ),
        (
            {"child": {"extends": "child", "name": "child"}},
            ("child.yaml", "extends"),
            "circle",
            "child -> child",
        ),
        (
            {
                "child": {"extends": "other", "name": "a"},
                "other": {"extends": "child", "name": "b"},
            },
            ("other.yaml", "extends"),
            "circle",
            "child -> other -> child",
        ),
        (
            {"child": {"extends": "other", "name": "a"}, "other": "a: [1\nb: 2\n"},
            ("other.yaml", ""),
            "syntax",
            "line 2",
        ),
    ],
)
def test_what_cannot_be_extended_is_refused(campaigns, files, where, code, says):
    folder = campaigns(base=BASE, **files)
    problem = problems(folder / "child.yaml")[where]
    assert (problem.code, says in problem.message) == (code, True)
    assert problem.near == (("base",) if code == "unknown_name" else ())


def test_the_complete_campaign_stands_alone(campaigns):
    folder = campaigns(
        base=BASE, child={"extends": "base", "name": "child", "add_matrix": ADDED}
    )
    complete = campaign_values(folder / "child.yaml")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "campaign.yaml").write_text(yaml.safe_dump(complete))
    alone = load_config(folder / "elsewhere" / "campaign.yaml", CONFIG)
    extending = load_config(folder / "child.yaml", CONFIG)
    assert alone.campaign == extending.campaign
    assert [alone.measurement_id(cell) for cell in alone.cells] == [
        extending.measurement_id(cell) for cell in extending.cells
    ]


VALUES = st.recursive(
    st.integers(0, 3) | st.none(),
    lambda inner: (
        st.dictionaries(st.sampled_from(["a", "b", "c.d"]), inner, max_size=3)
        | st.lists(inner, max_size=2)
    ),
    max_leaves=6,
)
MAPPINGS = st.dictionaries(st.sampled_from(["a", "b", "server"]), VALUES, max_size=3)


@settings(deadline=None)
@given(base=MAPPINGS, child=MAPPINGS)
def test_every_key_is_the_last_ones_that_wrote_it(tmp_path_factory, base, child):
    folder = tmp_path_factory.mktemp("campaigns")
    (folder / "base.yaml").write_text(dump({"name": "base", **base}))
    (folder / "child.yaml").write_text(
        dump({"extends": "base", "name": "child", **child})
    )
    source, found = read_campaign(folder / "child.yaml")
    assert not found
    written = {"base": {"name": "base", **base}, "child": {"name": "child", **child}}
    place = (folder / "child.yaml").as_posix()
    for key in set(_keys(source.raw)) - {"results"}:
        problem = source.located(ConfigProblem(place, key, "is wrong"), place)
        assert problem.key == key
        writer = "base" if _at(written["child"], key) is _MISSING else "child"
        assert _at(written[writer], key) is not _MISSING
        assert problem.file == (folder / f"{writer}.yaml").as_posix()


def _keys(content, prefix=""):
    for name, inner in content.items() if isinstance(content, dict) else ():
        yield prefix + name
        yield from _keys(inner, f"{prefix}{name}.")


_MISSING = object()


def _at(content, key):
    """Follow a dotted key of nested mappings whose own keys may have dots."""
    if not key:
        return content
    for name in content if isinstance(content, dict) else ():
        if key == name or key.startswith(f"{name}."):
            found = _at(content[name], key.removeprefix(name).removeprefix("."))
            if found is not _MISSING:
                return found
    return _MISSING
