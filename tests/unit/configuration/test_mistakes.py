"""Every mistake is reported, all at once, with its file, its key and what would be valid."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.config_files import CONFIG, NAMES, RAW, changed, load, write

from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config


def problems(folder, files):
    with pytest.raises(ConfigError) as caught:
        load(folder, files)
    return {
        (Path(problem.file).name, problem.key): problem
        for problem in caught.value.problems
    }


@pytest.fixture(scope="module")
def default():
    return load_config(CONFIG / "config.yaml", CONFIG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


def test_what_does_not_go_together_is_reported_at_once_in_the_server_and_beyond_it(
    tmp_path,
):
    """A campaign for a cluster's GPUs made one for a CPU, with a size that its baseline cannot have."""
    (tmp_path / "campaigns").mkdir()
    for path in CONFIG.glob("*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    shutil.copy2(CONFIG / "campaigns" / "cluster-first.yaml", tmp_path / "campaigns")
    mine = tmp_path / "campaigns" / "mine.yaml"
    mine.write_text(
        "extends: cluster-first\nname: mine\nserver: {build: vllm-cpu}\n"
        "add_matrix: [{models: [Qwen3-0.6B], scenarios: [no-offload], cpu_blocks: [5]}]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(mine, tmp_path)
    assert {(problem.key, problem.code) for problem in caught.value.problems} == {
        ("server", "block_size_uneven"),
        ("server", "device_blocks_missing"),
        ("", "no_gpu_to_price"),
        ("matrix[1].scenarios[0]", "native_on_cpu_too_old"),
        ("add_matrix[0].cpu_blocks[0]", "size_without_tier"),
    }


@pytest.mark.parametrize(
    ("pause_s", "keys"),
    [
        ({"mean": 20}, ["pause_s.stdev"]),
        ({"mean": 20, "stdev": -1}, ["pause_s.stdev"]),
        ("long", ["pause_s"]),
    ],
)
def test_a_mistake_inside_a_mapping_is_not_also_one_of_the_mapping(
    tmp_path, pause_s, keys
):
    users = {"profile": "users", "levels": [6], "turns": 2, "prompt_tokens": 10}
    users |= {"output_tokens": 10, "seconds": 30, "seed": 1, "pause_s": pause_s}
    named = problems(tmp_path, changed(("workloads", "users"), users))
    assert [key.removeprefix("users.") for _, key in named] == keys


def test_all_mistakes_of_all_files_are_reported_at_once(tmp_path):
    files = changed(("models", "Qwen3-0.6B", "geometry", "kv_hads"), 8)
    files = changed(("models", "Qwen3-14B", "extends"), "Qwen3-9B", files)
    files = changed(("scenarios", "native-offload", "arm"), "nativ", files)
    files = changed(("workloads", "laptop", "turns"), 2.5, files)
    files = changed(("config", "matrix", 1, "scenarios"), ["native-ofload"], files)
    files = changed(("config", "run"), 2, files)
    files = changed(("config", "server", "vllm"), 0.32, files)
    found = problems(tmp_path, files)
    assert found.keys() == {
        ("models.yaml", "Qwen3-0.6B.geometry.kv_hads"),
        ("models.yaml", "Qwen3-14B.extends"),
        ("scenarios.yaml", "native-offload.arm"),
        ("workloads.yaml", "laptop.turns"),
        ("config.yaml", "matrix[1].scenarios[0]"),
        ("config.yaml", "run"),
        ("config.yaml", "server.vllm"),
    }
    likeliest = {
        key: (problem.code, *problem.near[:1]) for (_, key), problem in found.items()
    }
    assert likeliest == {
        "Qwen3-0.6B.geometry.kv_hads": ("unknown_key", "kv_heads"),
        "Qwen3-14B.extends": ("unknown_name", "Qwen3-8B"),
        "native-offload.arm": ("unknown_name", "native"),
        "laptop.turns": ("int_type",),
        "matrix[1].scenarios[0]": ("unknown_name", "native-offload"),
        "run": ("unknown_key", "runs"),
        "server.vllm": ("string_type",),
    }
    assert "in quotes" in found["config.yaml", "server.vllm"].valid


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("think_s", "pause_s"),
        ("pause", "pause_s"),
        ("users", "levels"),
        ("documents", "document_tokens"),
        ("questions", "turns"),
        ("answer_tokens", "output_tokens"),
        ("duration_s", "seconds"),
        ("zipf", "prefix_zipf"),
    ],
)
def test_words_that_people_try_in_a_workload_are_refused_with_its_key(
    tmp_path, word, key
):
    files = changed(("workloads", "laptop", word), 5)
    found = problems(tmp_path, files)["workloads.yaml", f"laptop.{word}"]
    assert (found.code, found.near[0]) == ("unknown_key", key)
    assert f"did you mean {key}" in found.valid


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("", "empty", ""),
        ("# nothing\n", "empty", ""),
        ("- a\n", "no_mapping", "a list"),
        ("a: [1\nb: 2\n", "syntax", "line 2: "),
        ("a:\n\tb: 1\n", "syntax", "line 2: "),
        (
            "a: 1\nb: 2\na: 3\n",
            "syntax",
            "line 3: key 'a' is given twice, first in line 1",
        ),
        ("3: {}\n", "key_no_text", ""),
    ],
)
def test_files_that_are_no_mapping_say_so(tmp_path, name, content, code, says):
    found = problems(tmp_path, {**RAW, name: content})
    assert any(
        (file, problem.code) == (f"{name}.yaml", code) and says in problem.message
        for (file, _), problem in found.items()
    ), found


def test_missing_and_undecodable_files_are_named(tmp_path):
    write(tmp_path, RAW)
    (tmp_path / "models.yaml").unlink()
    (tmp_path / "metrics.yaml").write_bytes(b"a: \xff\xfe\x00")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "config.yaml", tmp_path)
    assert [
        (Path(problem.file).name, problem.code) for problem in caught.value.problems
    ] == [*(("models.yaml", "no_file"), ("metrics.yaml", "syntax"))]


@pytest.mark.parametrize(
    ("path", "value", "key", "code"),
    [
        (
            ("scenarios", "native-offload", "baseline"),
            "no-ofload",
            "native-offload.baseline",
            "unknown_name",
        ),
        (
            ("scenarios", "native-offload", "baseline"),
            "lmcache-local",
            "native-offload.baseline",
            "no_baseline",
        ),
        (
            ("scenarios", "native-offload", "cpu_tier"),
            False,
            "native-offload",
            "cpu_tier",
        ),
        (
            ("scenarios", "native-offload", "exercised"),
            [],
            "native-offload",
            "exercised_empty",
        ),
        (
            ("scenarios", "lmcache-redis", "store"),
            "rediss",
            "lmcache-redis.store",
            "unknown_name",
        ),
        (
            ("scenarios", "lmcache-redis", "companions"),
            {"lmcach": {}},
            "lmcache-redis.companions.lmcach",
            "unknown_name",
        ),
        (
            ("releases", "llm-d-0.9.0", "images", "rediss"),
            "redis:8",
            "llm-d-0.9.0.images.rediss",
            "unknown_name",
        ),
        (
            ("scenarios", "native-offload", "exercised"),
            [{"name": "vllm:request_success_total", "unit": "requests"}],
            "native-offload.exercised[0].unit",
            "unknown_name",
        ),
        (
            ("scenarios", "native-offload", "store"),
            "redis",
            "native-offload",
            "store_not_used",
        ),
        (
            ("scenarios", "no-offload", "extends"),
            "no-offload-mempress",
            "no-offload.extends",
            "circle",
        ),
        (
            ("scenarios", "no-offload", "env"),
            {"HF_TOKEN": "x"},
            "no-offload.env",
            "secret",
        ),
        (
            ("scenarios", "no-offload", "env"),
            {"A": True},
            "no-offload.env.A",
            "string_type",
        ),
        (
            ("models", "Qwen3-0.6B", "max_model_len"),
            50_000,
            "Qwen3-0.6B",
            "too_many_positions",
        ),
        (
            ("models", "Qwen3-0.6B", "tensor_parallel_size"),
            3,
            "Qwen3-0.6B",
            "ranks_do_not_divide",
        ),
        (
            ("models", "Llama-3.1-8B", "gpu_memory_utilization"),
            1.5,
            "Llama-3.1-8B.gpu_memory_utilization",
            "less_than_equal",
        ),
        (("workloads", "laptop", "levels"), [1, 1], "laptop", "levels_repeat"),
        (("workloads", "laptop", "levels"), [], "laptop", "no_levels"),
        (("workloads", "laptop", "warmup_s"), 1000, "laptop", "all_warmup"),
        (("workloads", "laptop", "prefix_count"), 0, "laptop", "prefix_half_given"),
        (
            ("workloads", "laptop", "seconds"),
            float("inf"),
            "laptop.seconds",
            "finite_number",
        ),
        (("workloads", "sweep", "levels"), [1], "sweep", "sweep_with_levels"),
        (
            ("metrics", "requests_running", "reduction"),
            "ratio",
            "requests_running",
            "ratio_without_parts",
        ),
        (
            ("config", "server", "device_blocks"),
            None,
            "server",
            "device_blocks_missing",
        ),
        (("config", "server", "device_blocks"), 1121, "server", "device_blocks_uneven"),
        (("config", "server", "block_size"), 16, "server", "block_size_uneven"),
        (("config", "server", "vllm"), "new", "server.vllm", "no_version"),
        (("config", "results"), "../elsewhere", "results", "not_below"),
        (("config", "workload"), "laptp", "workload", "unknown_name"),
        (("config", "workload"), "published", "workload", "too_long"),
        (("config", "workload"), "sweep", "workload", "sweep"),
        (("config", "runs"), 0, "runs", "greater_than"),
        (("config", "matrix"), [], "matrix", "too_short"),
        (
            ("config", "matrix", 1, "models"),
            ["Qwen3-0.6B", "Qwen3-0.6B"],
            "matrix[1]",
            "repeated",
        ),
        (
            ("config", "matrix", 0, "cpu_blocks"),
            [0, 10],
            "matrix[0].cpu_blocks[1]",
            "size_without_tier",
        ),
        (
            ("config", "matrix", 1, "cpu_blocks"),
            [500, 0],
            "matrix[1].cpu_blocks[1]",
            "tier_without_size",
        ),
        (
            ("config", "matrix", 1, "cpu_blocks"),
            [-1],
            "matrix[1].cpu_blocks[0]",
            "greater_than_equal",
        ),
        (
            ("config", "matrix", 0, "scenarios"),
            ["no-offload", "llm-d-redis"],
            "matrix[0].scenarios[1]",
            "index_on_cluster_alone",
        ),
        (
            ("config", "matrix", 0, "scenarios"),
            ["no-offload-mempress"],
            "matrix[0].scenarios[0]",
            "fixed_capacity",
        ),
        (("config", "server", "args"), ["--block_size=64"], "server", "computed"),
        (("config", "server", "env"), {"PYTHONHASHSEED": 7}, "server", "computed"),
        (("config", "scenarios"), {"no-offload": {}}, "scenarios.no-offload", "taken"),
        (
            ("config", "scenarios"),
            {"x": {"extends": "y"}},
            "scenarios.x.extends",
            "unknown_name",
        ),
        (("config", "models"), ["Qwen3-0.6B"], "models", "no_mapping"),
        (
            ("config", "matrix", 0, "models"),
            "Qwen3-0.6B",
            "matrix[0].models",
            "tuple_type",
        ),
        (("config", "server"), None, "server", "model_type"),
        (("config", "server", "env"), {1: "x"}, "server.env[1]", "string_type"),
    ],
)
def test_each_mistake_is_named_with_its_key_and_its_kind(
    tmp_path, path, value, key, code
):
    found = problems(tmp_path, changed(path, value))
    assert len(found) == 1 or path[0] in ("models", "scenarios"), found
    assert (f"{path[0]}.yaml", key) in found, found
    assert found[f"{path[0]}.yaml", key].code == code


def paths(value, here=()):
    """Yield the path of every value in nested content."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inner:
        yield (*here, key)
        yield from paths(item, (*here, key))


PATHS = sorted(
    (path for path in paths({name: RAW[name] for name in NAMES}) if len(path) > 1),
    key=str,
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**6)
    | st.floats()
    | st.sampled_from(["", "x", "0.1", "no-offload", "{port}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "extends", "pcp", "*", 3]), inner)
    ),
    max_leaves=5,
)


@settings(max_examples=30, deadline=None)
@given(path=st.sampled_from(PATHS), value=ANYTHING)
def test_whatever_stands_in_a_file_it_loads_or_is_reported(folder, path, value):
    try:
        config = load(folder, changed(path, value))
    except ConfigError as error:
        assert error.problems
        assert all(problem.file and problem.message for problem in error.problems)
    else:
        assert all(len(config.measurement_id(cell)) == 16 for cell in config.cells)


def test_a_mistake_is_reported_where_it_is_and_not_by_every_heir(tmp_path):
    files = changed(("models", "Qwen3-0.6B", "geometry", "layers"), "many")
    assert problems(tmp_path, files).keys() == {
        ("models.yaml", "Qwen3-0.6B.geometry.layers")
    }


def test_a_catalogue_that_cannot_be_read_does_not_make_its_names_unknown(tmp_path):
    assert problems(tmp_path, {**RAW, "models": "a: ["}).keys() == {("models.yaml", "")}


@pytest.mark.parametrize(
    ("path", "code", "near"),
    [
        ("Qwen3-0.6B/no-offload/10", "size_without_tier", ()),
        ("Qwen3-0.6B/native-offload/0", "tier_without_size", ()),
        ("Qwen3-0.6B/native-offload/010", "no_number", ()),
        ("Qwen3-0.6B/native-offload", "no_path", ()),
        ("Qwen3-0.6B//10", "no_path", ()),
        ("Qwen3-0.6B/native-offload/1", "less_than_a_block", ()),
        ("Qwen3-0.7B/native-offload/10", "unknown_name", ("Qwen3-0.6B",)),
        ("Qwen3-0.6B/native/10", "unknown_name", ("native-offload",)),
        ("Qwen3-0.6B/llm-d-redis/0", "index_on_cluster_alone", ()),
    ],
)
def test_a_cell_asked_for_by_path_is_checked(default, path, code, near):
    with pytest.raises(ConfigError) as caught:
        default.cell(path)
    (problem,) = caught.value.problems
    assert (problem.file, problem.code, problem.near[:1]) == (
        f"cell {path}",
        code,
        near,
    )


def test_a_mistake_is_told_with_its_place_and_what_would_be_right(default):
    with pytest.raises(ConfigError) as caught:
        default.cell("Qwen3-0.6B/nativ-offload/10")
    assert str(caught.value).startswith(
        "cell Qwen3-0.6B/nativ-offload/10: scenarios: there is no 'nativ-offload' (valid: did you mean native-offload"
    )


def test_a_value_that_is_none_of_several_alternatives_has_one_problem_with_all_of_them(
    tmp_path,
):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, changed(("workloads", "laptop", "prefix_count"), "many"))
    (problem,) = error.value.problems
    assert (
        problem.message
        == "'many': input should be a valid integer; or: 'many' is a text"
    )
    assert problem.valid == "a mapping of keys to values"
    with pytest.raises(ConfigError) as error:
        load(tmp_path, changed(("workloads", "laptop", "levels"), "many"))
    (problem,) = error.value.problems
    assert (problem.message, problem.valid) == ("'many' is a text", "a list, in [ ]")
