"""The command `kveval`: its options, what it prints and keeps, and its exit statuses; nothing is measured."""

import errno
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.support.paths import REPOSITORY, SCRIPTS
from tests.support.stored_runs import measured, pointed
from typer.main import get_group
from typer.testing import CliRunner, Result

from kveval import __version__
from kveval.campaign.builds import BuildError
from kveval.configuration.loading import load_config
from kveval.host.errors import Failure
from kveval.host.processes import Terminated
from kveval.plugins.builds import check_command
from kveval.plugins.builds.campaign import CheckError
from kveval.plugins.builds.check import CheckRequest
from kveval.plugins.builds.judging import Verdict
from kveval.plugins.builds.measuring import Stopped
from kveval.plugins.traces.conversations import Sharing
from kveval.plugins.traces.plugin import PromptSharing, TimeUnit, TraceForm
from kveval.plugins.traces.request_log import UNITS
from kveval.plugins.traces.trace_making import BLOCK_TOKENS
from kveval.store.store import Store
from kveval.workflow.command import checkout, engine
from kveval.workflow.command.checkout import Checkout, NoCheckout
from kveval.workflow.command.exits import JUDGING
from kveval.workflow.command.main import PruneKind, app
from kveval.workflow.upkeep.prune import KINDS

COMMANDS = (
    *("plan", "curve", "trace", "import", "models", "doctor", "deploy-one"),
    *("teardown", "verify", "prune", "check", "history", "export"),
)
HEAVY = {"pandas", "numpy", "scipy", "pyarrow", "snakemake", "matplotlib"}
SMOKE = "config/campaigns/smoke.yaml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with nothing but the configuration, which is the working directory."""
    folder = tmp_path / "repository"
    shutil.copytree(REPOSITORY / "config", folder / "config")
    (folder / "Snakefile").touch()
    monkeypatch.chdir(folder)
    return folder


def kveval(*words: str) -> Result:
    return CliRunner().invoke(app, words)


# --- the command line


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from kveval.workflow.command.main import app\n"
        "try: app(sys.argv[1:])\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert all(f" {command} " in done.stdout for command in COMMANDS)
    assert not HEAVY & set(done.stderr.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_refuses_what_it_does_not_know(
    command: str,
) -> None:
    assert kveval(command, "--help").exit_code == 0
    done = kveval(command, "--nothing")
    assert done.exit_code == (128 if command == JUDGING else 2)
    assert "--nothing" in done.stderr


def test_a_command_that_is_not_there_is_a_mistake() -> None:
    assert kveval("plam").exit_code == 2


def test_the_version_is_printed() -> None:
    assert kveval("--version").stdout == f"kveval {__version__}\n"


def test_a_shipped_campaign_is_known_by_its_name(folder: Path) -> None:
    assert "\nCampaign smoke: " in kveval("plan", "smoke").stdout
    assert (
        "\nCampaign feb-2026-llm-d-0.8: " in kveval("plan", "feb-2026-llm-d-0.8").stdout
    )
    done = kveval("plan", "smok")
    assert (done.exit_code, "did you mean smoke" in done.stderr) == (2, True)


def test_a_folder_that_is_not_there_is_a_mistake(folder: Path) -> None:
    done = kveval("plan", "--directory", "nothing")
    assert (done.exit_code, "no such folder" in done.stderr) == (2, True)


def test_what_the_system_refuses_is_a_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "results/a.json")

    monkeypatch.setattr(engine, "tear_down", fail)
    done = kveval("teardown", SMOKE)
    said = "FAILED: results/a.json: No space left on device\n"
    assert (done.exit_code, done.stderr) == (1, said)


def test_programs_of_one_checkout_say_that_the_files_are_anothers(
    folder: Path,
) -> None:
    assert Checkout.from_folders(folder).warning == ""
    (folder / "scripts" / "kveval").mkdir(parents=True)
    assert str(folder) in Checkout.from_folders(folder).warning
    assert Checkout.from_folders(REPOSITORY).warning == ""


def test_choices_of_options_are_those_that_there_are() -> None:
    assert [kind.value for kind in PruneKind] == [*KINDS]
    assert [unit.value for unit in TimeUnit] == [*UNITS]
    assert [form.value for form in TraceForm] == [*BLOCK_TOKENS]
    assert [one.value for one in PromptSharing] == [one.value for one in Sharing]


def test_the_first_command_of_a_user_passes_every_command_on() -> None:
    text = (REPOSITORY / "scripts" / "run.sh").read_text()
    (names,) = re.findall(r"^    (plan \| .*)\)$", text, re.MULTILINE)
    assert get_group(app).commands.keys() <= set(names.split(" | "))


def test_it_runs_as_a_module_and_under_its_own_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kveval", "plan", "--nothing"],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "Usage: kveval plan" in done.stderr


# --- the campaign and the checkout


def test_a_campaign_its_changes_and_the_default_one_are_planned(folder: Path) -> None:
    done = kveval("plan")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Qwen3-0.6B: a tier can pay, ")
    assert "\nCampaign laptop: " in done.stdout
    assert done.stdout == (folder / "logs/laptop/plan.log").read_text()
    assert "Table: logs/laptop/plan.csv" in done.stdout
    assert "\nCampaign smoke: " in kveval("plan", SMOKE).stdout
    changed = kveval("plan", SMOKE, "--set", "runs=3", "--set", "title=Anew")
    assert "\nCampaign smoke: Anew\n2 cells, 6 runs: " in changed.stdout


def test_a_plan_as_json_has_a_row_per_run_and_the_log_the_text(folder: Path) -> None:
    done = kveval("plan", SMOKE, "--json")
    told = json.loads(done.stdout)
    assert (told["schema"], told["campaign"], len(told["runs"])) == (1, "smoke", 2)
    assert {run["state"] for run in told["runs"]} == {"measure"}
    text = (folder / "logs/smoke/plan.log").read_text()
    assert text.startswith("Qwen3-0.6B: a tier can pay, ")
    assert "\nCampaign smoke: " in text


def test_paths_are_of_where_the_user_stands_and_results_of_the_checkout(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "config" / "campaigns")
    assert kveval("plan", "smoke.yaml").exit_code == 0
    assert (folder / "logs/smoke/plan.csv").exists()
    assert Path.cwd() == folder / "config" / "campaigns"


def test_results_may_be_of_another_folder(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert kveval("plan", SMOKE, "--directory", str(elsewhere)).exit_code == 0
    assert (elsewhere / "logs/smoke/plan.csv").exists()
    assert not (folder / "logs").exists()


def test_outside_of_a_checkout_it_is_the_librarys_own_or_named_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Checkout.from_folders(tmp_path).root == REPOSITORY
    monkeypatch.setattr(checkout, "_MARKS", ("Snakefile.of.nobody",))
    monkeypatch.chdir(tmp_path)
    assert Checkout.from_folders(tmp_path).catalogues == REPOSITORY / "config"
    with pytest.raises(NoCheckout, match="--directory"):
        _ = Checkout.from_folders(tmp_path).benchmark_script
    assert kveval("plan").exit_code == 0
    done = kveval("doctor")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--directory" in done.stderr


MISTAKES = {
    "a tab": (
        'name: tabbed\nserver:\n\tvllm: "0.32.0"\n',
        "mine.yaml",
        ["mine.yaml", "line 3"],
    ),
    "a key": ("name: mine\nmatrx: []\n", "mine.yaml", ["matrx"]),
    "another file": ("", "config/campaigns/smokee.yaml", ["smokee.yaml"]),
}


@pytest.mark.parametrize(("text", "named", "told"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("command", ["plan", "verify", "doctor"])
def test_a_mistake_in_a_campaign_ends_with_its_message(
    folder: Path, command: str, text: str, named: str, told: list[str]
) -> None:
    (folder / "mine.yaml").write_text(text)
    done = kveval(command, named)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in told), done.stderr


@pytest.mark.parametrize("change", ["runs", "=3", "runs=[1"])
def test_a_change_that_is_none_is_refused(folder: Path, change: str) -> None:
    done = kveval("plan", "--set", change)
    assert done.exit_code == 2
    assert f"--set {change}" in done.stderr


def test_a_failure_is_said_and_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise Failure("nobody is there")

    monkeypatch.setattr(engine, "tear_down", fail)
    done = kveval("teardown", SMOKE)
    assert (done.exit_code, done.stderr) == (1, "FAILED: nobody is there\n")
    log = folder / "logs/smoke/teardown.log"
    assert log.read_text() == "FAILED: nobody is there\n"


# --- the answers


def leave_runs(folder: Path, numbers: Iterable[int]) -> None:
    """Leave runs of every cell of the campaign smoke, which is to have three."""
    file = folder / SMOKE
    file.write_text(re.sub(r"(?m)^runs: .*$", "runs: 3", file.read_text()))
    config = load_config(file, folder / "config")
    store = Store(folder / "results" / "measurements")
    for cell, number in itertools.product(config.cells, numbers):
        specification = config.specification(cell).to_json()
        place = measured(store, specification, number)
        results = folder / config.campaign.results
        pointed(results, place, specification, number)


def test_a_run_that_is_gone_from_the_store_is_planned_and_its_pointer_named(
    folder: Path,
) -> None:
    leave_runs(folder, [1, 2])
    shutil.rmtree(next((folder / "results/measurements").glob("*/run-2")))
    text = kveval("plan", SMOKE).stdout
    assert "6 runs: 3 measured, 0 in the store, 3 to be measured" in text
    assert "deleted from the store" in text
    (line,) = (line for line in text.splitlines() if line.startswith("  rm "))
    assert Path(line.removeprefix("  rm ")).is_file()
    assert line.endswith("run-2/measurement.json")


def test_a_doctor_who_finds_an_error_ends_with_1(folder: Path) -> None:
    # Nothing is installed beside this copy.
    done = kveval("doctor", SMOKE)
    assert done.exit_code == 1
    assert "ERROR  " in done.stdout
    assert done.stdout == (folder / "logs/smoke/doctor.log").read_text()
    told = json.loads(kveval("doctor", SMOKE, "--json").stdout)
    assert "error" in {finding["level"] for finding in told["findings"]}


def test_curves_are_printed_drawn_and_tabled(folder: Path) -> None:
    done = kveval("curve", SMOKE, "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert {row["model"] for row in rows} == {"Qwen3-0.6B"}
    assert (folder / "logs/smoke/curve.csv").exists()
    assert (folder / "logs/smoke/curve.png").exists()


def test_models_have_the_sizes_of_their_caches(folder: Path) -> None:
    done = kveval("models", "--json")
    models = {row["model"]: row for row in json.loads(done.stdout)["models"]}
    small, large = models["Qwen3-0.6B"], models["Qwen3-32B"]
    # 2 x 28 layers x 8 KV heads x 128 values x 2 bytes
    assert small["kv_bytes_per_token"] == 114_688
    assert small["kv_bytes_per_block"] == 16 * 114_688
    assert large["ranks"] == 2
    assert 2 * large["kv_bytes_per_token_and_rank"] == large["kv_bytes_per_token"]
    assert "112 KiB" in kveval("models").stdout
    assert "tier" not in small
    layers = models["Gemma-3-27B"]["tier"]
    assert [group["layers"] for group in layers["groups"]] == [10, 9, 9, 9, 9, 8, 8]
    assert layers["conversations_per_gib"]["4096"] > 1
    of_float = yaml.safe_load((folder / "config/models.yaml").read_text())
    of_float["Qwen3-0.6B"]["dtype"] = "float32"
    (folder / "config/models.yaml").write_text(yaml.safe_dump(of_float))
    assert "224 KiB" in kveval("models").stdout


def test_models_have_an_estimate_of_what_the_campaigns_gpu_holds(folder: Path) -> None:
    files = folder / "config"
    campaign = yaml.safe_load((files / "config.yaml").read_text())
    assert "estimated for" not in kveval("models").stdout
    campaign |= {"gpu": "H100", "hardware": "H100"}
    server = {"vllm": "0.32.0", "guidellm": "0.8.1", "lmcache": "0.5.6"}
    campaign["server"] = server | {"weights": "full"}
    (files / "config.yaml").write_text(yaml.safe_dump(campaign))
    models = json.loads(kveval("models", "--json").stdout)["models"]
    devices = {one["model"]: one.get("device") for one in models}
    estimate = devices["Qwen3-8B"]
    assert estimate["low_tokens"] < estimate["tokens"] < estimate["high_tokens"]
    assert "of H100 x 0." in estimate["source"]
    # Its layers are of several kinds.
    assert devices["gpt-oss-20b"] is None
    text = kveval("models").stdout
    assert "estimated for H100" in text and f"{estimate['low_tokens']:,}" in text


def test_models_have_their_caches_by_dtype_and_ranks(folder: Path) -> None:
    sizes = json.loads(kveval("models", "--json").stdout)["kv_sizes"]
    rows = {(row["model"], row["kv_dtype"], *row["ranks"]): row for row in sizes}
    full = rows["Qwen3-0.6B", "bfloat16", 1, 2, 4, 8]
    assert full["kv_bytes_per_block"] == 16 * full["kv_bytes_per_token"] == 1_835_008
    assert full["tokens_per_gib"] == 9362
    half = rows["Qwen3-0.6B", "fp8", 1, 2, 4, 8]
    assert 2 * half["kv_bytes_per_token"] == full["kv_bytes_per_token"]
    # Two KV heads: four ranks hold two copies of each.
    of_two, of_four = (
        rows["Qwen3-Next-80B-A3B", "bfloat16", *ranks] for ranks in ((1, 2), (4,))
    )
    assert 2 * of_two["kv_bytes_per_token"] == of_four["kv_bytes_per_token"]
    assert "9,362" in kveval("models").stdout


def test_deploying_needs_a_cluster(folder: Path) -> None:
    done = kveval("deploy-one", SMOKE)
    assert done.exit_code == 1
    assert "deploy-one needs a cluster" in done.stderr


def test_an_empty_store_is_sound_and_nothing_is_pruned(folder: Path) -> None:
    (folder / "results").mkdir()
    assert kveval("verify", SMOKE, "--cores", "1").exit_code == 0
    assert kveval("prune", SMOKE).stdout == "Nothing to prune.\n"
    told = json.loads(kveval("prune", SMOKE, "--json", "--kind", "failed").stdout)
    assert (told["deleted"], told["entries"]) == (False, [])
    assert kveval("prune", SMOKE, "--older-than", "a month").exit_code == 2
    assert kveval("prune", SMOKE, "--also", "nowhere").exit_code == 1


def test_a_history_without_results_says_what_makes_them(folder: Path) -> None:
    done = kveval("history", SMOKE, "--folder", "kept", "--program", "lmcache")
    assert done.exit_code == 0
    command = f"snakemake --cores 4 report --configfile {SMOKE}"
    assert f"`{command}` makes it" in done.stdout
    assert (folder / "kept").is_dir()


def test_builds_are_named_from_where_the_user_stands(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    monkeypatch.chdir(tmp_path / "vllm")
    requests: list[CheckRequest] = []

    def run(values: object, request: CheckRequest, *more: object) -> None:
        requests.append(request)
        raise CheckError("seen")

    monkeypatch.setattr(check_command, "run_check", run)
    there = ("--directory", str(folder))
    kveval("check", *there, "--candidate", ".", "--base", "../vllm@main")
    kveval("check", *there, "--candidate", "a.whl", "--base", "vllm==0.31.0")
    assert [(one.candidate, one.base) for one in requests] == [
        ("../vllm", "../vllm@main"),
        ("../vllm/a.whl", "vllm==0.31.0"),
    ]


# --- verdicts for scripts

Ending = Callable[[object], Result]


@pytest.fixture
def ending(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ending]:
    """Run a check that ends with a verdict, or with an exception."""

    def check(outcome: Any) -> Result:
        def run(*given: object) -> Any:
            if isinstance(outcome, BaseException):
                raise outcome
            return SimpleNamespace(verdict=outcome), folder

        monkeypatch.setattr(check_command, "run_check", run)
        return kveval("check", SMOKE, "--candidate", "mine.whl")

    monkeypatch.setattr(
        check_command, "check_text", lambda result, folder: result.verdict
    )
    monkeypatch.setattr(check_command, "check_document", vars)
    return check


STATUSES: dict[Verdict, int] = {
    "improvement": 0,
    "no difference that matters": 0,
    "regression": 1,
    "not enough": 125,
    "candidate fails": 125,
    "nothing measured": 128,
}


@pytest.mark.parametrize(("verdict", "status"), STATUSES.items())
def test_a_verdict_has_its_status(
    ending: Ending, verdict: Verdict, status: int
) -> None:
    done = ending(verdict)
    assert (done.exit_code, done.stdout) == (status, f"{verdict}\n")


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (BuildError("wheel", code="no_wheel_there", side="candidate"), 125),
        (BuildError("wheel", code="no_wheel_there", side="base"), 128),
        (BuildError("checkout", code="no_commit", side="candidate"), 128),
        (CheckError("no arm"), 128),
        (Stopped("stopped"), 128),
        (ValueError("a mistake in the program"), 128),
        (BrokenPipeError(32, "gone"), 128),
        (Terminated("SIGINT"), 130),
        (Terminated("SIGTERM"), 143),
        (Terminated("SIGHUP"), 129),
    ],
)
def test_what_is_no_verdict_is_none_for_git(
    ending: Ending, outcome: BaseException, status: int
) -> None:
    assert ending(outcome).exit_code == status


@pytest.mark.parametrize(
    "words",
    [
        ("check",),
        ("check", "--candidate"),
        ("check", "--candidate", "x", "--blocks", "many"),
        ("check", "--candidate", "x", "nowhere.yaml"),
        ("check", "--candidate", "x", "--set", "runs"),
        ("check", "--candidate", "x", SMOKE, "--arm", "native-offload"),
    ],
)
def test_a_mistake_is_no_verdict(folder: Path, words: tuple[str, ...]) -> None:
    done = kveval(*words)
    assert done.exit_code == 128
    assert "Traceback" not in done.stderr


def test_a_curve_is_of_the_model_whose_config_is_given(folder: Path) -> None:
    shape = {
        "architectures": ["FancyForCausalLM"], "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "hidden_size": 512, "vocab_size": 1000, "max_position_embeddings": 40960,
    }  # fmt: skip
    Path("mine").mkdir()
    Path("mine/config.json").write_text(json.dumps(shape))
    campaign = ["config/campaigns/agents-with-tools.yaml", "--model-config"]
    done = kveval("curve", *campaign, "mine/config.json")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("mine: it fits: no tier pays")
    nowhere = kveval("curve", *campaign, "nowhere.json")
    assert (nowhere.exit_code, "nowhere.json: cannot be read" in nowhere.stderr) == (2, True)  # fmt: skip
