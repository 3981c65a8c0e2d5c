"""Every mistake is reported, all at once, with its file, its key and what would be valid."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.config_files import CONFIG, NAMES, RAW, changed, load, write

from kveval.config.problems import ConfigError
from kveval.spec.loading import load_config


def problems(folder, files):
    with pytest.raises(ConfigError) as caught:
        load(folder, files)
    return {
        (Path(problem.file).name, problem.key): f"{problem.message} | {problem.valid}"
        for problem in caught.value.problems
    }


@pytest.fixture(scope="module")
def default():
    return load_config(CONFIG / "config.yaml", CONFIG)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


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
    assert "did you mean kv_heads" in found["models.yaml", "Qwen3-0.6B.geometry.kv_hads"]
    assert "did you mean Qwen3-8B" in found["models.yaml", "Qwen3-14B.extends"]
    assert "did you mean native?" in found["scenarios.yaml", "native-offload.arm"]
    assert "did you mean native-offload" in found["config.yaml", "matrix[1].scenarios[0]"]
    assert "did you mean runs" in found["config.yaml", "run"]
    assert "in quotes" in found["config.yaml", "server.vllm"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- a\n", "holds a list"),
        ("a: [1\nb: 2\n", "line 2"),
        ("a:\n\tb: 1\n", "line 2"),
        ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' is given twice, first in line 1"),
        ("3: {}\n", "keys are text"),
    ],
)
def test_files_that_are_no_mapping_say_so(tmp_path, name, content, says):
    found = problems(tmp_path, {**RAW, name: content})
    assert any(file == f"{name}.yaml" and says in message for (file, _), message in found.items()), found


def test_missing_and_undecodable_files_are_named(tmp_path):
    write(tmp_path, RAW)
    (tmp_path / "models.yaml").unlink()
    (tmp_path / "metrics.yaml").write_bytes(b"a: \xff\xfe\x00")
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "config.yaml", tmp_path)
    assert [Path(problem.file).name for problem in caught.value.problems] == ["models.yaml", "metrics.yaml"]


@pytest.mark.parametrize(
    ("path", "value", "key", "says"),
    [
        (
            ("scenarios", "native-offload", "baseline"),
            "no-ofload",
            "native-offload.baseline",
            "did you mean no-offload",
        ),
        (("scenarios", "native-offload", "baseline"), "lmcache-local", "native-offload.baseline", "no baseline itself"),
        (("scenarios", "native-offload", "cpu_tier"), False, "native-offload", "cpu_tier must be true"),
        (("scenarios", "native-offload", "exercised"), [], "native-offload", "name a counter"),
        (("scenarios", "native-offload", "store"), "redis", "native-offload", "uses no store"),
        (("scenarios", "no-offload", "extends"), "no-offload-mempress", "no-offload.extends", "circle"),
        (("scenarios", "no-offload", "env"), {"HF_TOKEN": "x"}, "no-offload.env", "looks like a secret"),
        (("scenarios", "no-offload", "env"), {"A": True}, "no-offload.env.A", "text, in quotes"),
        (("models", "Qwen3-0.6B", "max_model_len"), 50_000, "Qwen3-0.6B", "40960 positions"),
        (("models", "Qwen3-0.6B", "tensor_parallel_size"), 3, "Qwen3-0.6B", "divides neither"),
        (("models", "Llama-3.1-8B", "gpu_memory_utilization"), 1.5, "Llama-3.1-8B.gpu_memory_utilization", "1.5"),
        (("workloads", "laptop", "levels"), [1, 1], "laptop", "repeat"),
        (("workloads", "laptop", "levels"), [], "laptop", "at least one"),
        (("workloads", "laptop", "warmup_s"), 1000, "laptop", "leaves nothing"),
        (("workloads", "laptop", "prefix_count"), 0, "laptop", "go together"),
        (("workloads", "laptop", "seconds"), float("inf"), "laptop.seconds", "finite"),
        (("workloads", "sweep", "levels"), [1], "sweep", "sweep_size and no levels"),
        (("metrics", "requests_running", "reduction"), "ratio", "requests_running", "numerator and denominator"),
        (("config", "server", "device_blocks"), None, "server", "device_blocks is missing"),
        (("config", "server", "device_blocks"), 1121, "server", "no whole number of server blocks"),
        (("config", "server", "block_size"), 16, "server", "no multiple of 32"),
        (("config", "server", "vllm"), "new", "server.vllm", "not a version"),
        (("config", "results"), "../elsewhere", "results", "below the repository"),
        (("config", "workload"), "laptp", "workload", "did you mean laptop"),
        (("config", "workload"), "published", "workload", "max_model_len 8192"),
        (("config", "workload"), "sweep", "workload", "different loads"),
        (("config", "runs"), 0, "runs", "greater than 0"),
        (("config", "matrix"), [], "matrix", "at least 1"),
        (("config", "matrix", 1, "models"), ["Qwen3-0.6B", "Qwen3-0.6B"], "matrix[1]", "repeats Qwen3-0.6B"),
        (("config", "matrix", 0, "cpu_blocks"), [0, 10], "matrix[0].cpu_blocks[1]", "no CPU tier"),
        (("config", "matrix", 1, "cpu_blocks"), [500, 0], "matrix[1].cpu_blocks[1]", "has a CPU tier"),
        (("config", "matrix", 1, "cpu_blocks"), [-1], "matrix[1].cpu_blocks[0]", "greater than or equal to 0"),
        (
            ("config", "matrix", 0, "scenarios"),
            ["no-offload", "llm-d-redis"],
            "matrix[0].scenarios[1]",
            "engine kubernetes",
        ),
        (("config", "matrix", 0, "scenarios"), ["no-offload-mempress"], "matrix[0].scenarios[0]", "device_blocks sets"),
        (("config", "server", "args"), ["--block_size=64"], "server", "--block-size, which is computed"),
        (("config", "server", "env"), {"PYTHONHASHSEED": 7}, "server", "PYTHONHASHSEED, which is computed"),
        (("config", "scenarios"), {"no-offload": {}}, "scenarios.no-offload", "has an entry of this name"),
        (("config", "scenarios"), {"x": {"extends": "y"}}, "scenarios.x.extends", "there is no 'y'"),
        (("config", "models"), ["Qwen3-0.6B"], "models", "is a list"),
        (("config", "matrix", 0, "models"), "Qwen3-0.6B", "matrix[0].models", "a list, in [ ]"),
        (("config", "server"), None, "server", "value left empty | a mapping"),
        (("config", "server", "env"), {1: "x"}, "server.env[1]", "text, in quotes"),
    ],
)
def test_each_mistake_is_named_with_its_key_and_what_is_valid(tmp_path, path, value, key, says):
    found = problems(tmp_path, changed(path, value))
    assert len(found) == 1 or path[0] in ("models", "scenarios"), found
    assert (f"{path[0]}.yaml", key) in found, found
    assert says in found[f"{path[0]}.yaml", key]


def paths(value, here=()):
    """Yield the path of every value in nested content."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*here, key)
        yield from paths(item, (*here, key))


PATHS = sorted((path for path in paths({name: RAW[name] for name in NAMES}) if len(path) > 1), key=str)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**6)
    | st.floats()
    | st.sampled_from(["", "x", "0.1", "no-offload", "{port}"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "extends", "pcp", "*", 3]), inner)
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
    assert problems(tmp_path, files).keys() == {("models.yaml", "Qwen3-0.6B.geometry.layers")}


def test_a_catalogue_that_cannot_be_read_does_not_make_its_names_unknown(tmp_path):
    assert problems(tmp_path, {**RAW, "models": "a: ["}).keys() == {("models.yaml", "")}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (("Qwen3-0.6B", "no-offload", "10"), "no CPU tier"),
        (("Qwen3-0.6B", "native-offload", "0"), "has a CPU tier"),
        (("Qwen3-0.6B", "native-offload", "010"), "no number of blocks"),
        (("Qwen3-0.6B", "native-offload", "1"), "less than one server block"),
        (("Qwen3-0.7B", "native-offload", "10"), "did you mean Qwen3-0.6B"),
        (("Qwen3-0.6B", "native", "10"), "did you mean native-offload"),
        (("Qwen3-0.6B", "llm-d-redis", "0"), "engine kubernetes"),
    ],
)
def test_a_cell_asked_for_by_path_is_checked(default, parts, says):
    with pytest.raises(ConfigError, match=says) as caught:
        default.cell(*parts)
    assert str(caught.value).startswith(f"cell {'/'.join(parts)}: ")
