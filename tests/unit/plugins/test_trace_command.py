"""`kveval trace`: where it writes, what it says, and that its workload is one that campaigns read."""

import json
from pathlib import Path

import pytest
import yaml
from tests.unit.workflow.test_command import folder, kveval

from kveval.load import traces
from kveval.load.workload import Workload
from kveval.workflow.command import checkout
from kveval.workflow.command.checkout import Checkout

__all__ = ["folder"]
LOG = "config/requests of today.csv"


@pytest.fixture
def log(folder: Path) -> Path:
    """A log of two conversations over 100 s, in a checkout that is the working directory."""
    lines = ["time,conversation_id,prompt_tokens,completion_tokens"]
    for turn in range(10):
        lines += [
            f"{10 * turn},a,{64 * turn + 32},20",
            f"{10 * turn + 11},b,{64 * turn + 64},20",
        ]
    (folder / LOG).write_text("\n".join(lines))
    return folder / LOG


def test_a_log_becomes_a_trace_that_a_campaign_replays(log: Path, folder: Path) -> None:
    done = kveval("trace", LOG, "--shared-prefix-tokens", "32")
    assert done.exit_code == 0, done.stderr
    assert (folder / "config/traces/requests-of-today.jsonl.gz").is_file()
    assert "2; 2 conversations" in done.stdout
    assert "Assumed" in done.stdout
    text = done.stdout.partition("In a campaign's file:\n\n")[2].partition("\n\nNext")[0]  # fmt: skip
    campaign = yaml.safe_load((folder / "config/campaigns/laptop-trace.yaml").read_text())  # fmt: skip
    campaign |= yaml.safe_load(text) | {"name": "mine"}
    path = folder / "config/campaigns/mine.yaml"
    path.write_text(yaml.safe_dump(campaign))
    curve = kveval("curve", "config/campaigns/mine.yaml")
    assert curve.exit_code == 0, curve.stderr
    assert "100 % of the trace's rate" in curve.stdout
    assert "A part of the trace" not in curve.stdout
    campaign["workloads"]["requests-of-today"]["seconds"] = 60
    path.write_text(yaml.safe_dump(campaign))
    curve = kveval("curve", "config/campaigns/mine.yaml")
    assert curve.stdout.startswith("A part of the trace: at 100 % the first 60 s of 101 s, 11 of 20 requests")  # fmt: skip


def test_the_workload_is_the_whole_log_however_long(folder: Path) -> None:
    lines = [f"{500 * number},99,9" for number in range(9)]
    Path("log.csv").write_text("\n".join(["time,prompt_tokens,output_tokens", *lines]))
    document = json.loads(kveval("trace", "log.csv", "--json").stdout)
    assert document["workload"]["seconds"] == 4001
    assert any("whole log" in note for note in document["notes"])


def test_as_json_it_is_one_document(log: Path, folder: Path) -> None:
    done = kveval("trace", LOG, "--out", "mine.jsonl", "--json")
    document = json.loads(done.stdout)
    assert (document["file"], document["requests"]) == ("mine.jsonl", 20)
    keys = "findings sharing prefix_tokens sessions conversations texts"
    assert [*document["log"]] == keys.split()
    assert [*document["log"]["findings"]] == ["entries", "fields", "clock", "units"]
    assert document["log"]["sharing"] == "history"
    assert document["workload"]["trace"]["file"] == str(folder / "mine.jsonl")
    assert document["hit_share"] == pytest.approx(0.8, abs=0.1)
    load = Workload.model_validate(document["workload"])
    assert load.definition.content is not None
    # All of them: the last comes in the level's last second.
    assert load.definition.content.requests == (20,)
    assert [*traces.rows(load.definition, 100, 1)][-1].timestamp == load.seconds + 10


def test_requests_at_one_time_are_sent_in_order(folder: Path) -> None:
    Path("log").write_text('{"ts": 7, "prompt_tokens": 9, "completion_tokens": 1}\n')
    done = kveval("trace", "log", "--json")
    load = Workload.model_validate(
        json.loads(done.stdout)["workload"], context={"folder": "config"}
    )
    assert load.profile == "trace-streams"
    assert load.definition.output_tokens == 1


def test_outside_of_a_checkout_it_writes_here_and_names_the_place(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Checkout, "from_folders", lambda *folders: Checkout(None))
    assert checkout.Checkout.from_folders().root is None
    done = kveval("trace", str(log))
    assert done.exit_code == 0, done.stderr
    output = tmp_path / "requests-of-today.trace.jsonl.gz"
    assert output.is_file()
    assert f"file: {output}" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("none.csv",), 1, "no trace none.csv: No such file"),
        ((LOG, "--field", "time"), 2, "write KIND=NAME, KIND one of time, session"),
        ((LOG, "--field", "times=x"), 2, "write KIND=NAME"),
        ((LOG, "--field", "session=at"), 1, "no field at for --field session"),
        ((LOG, "--sharing", "all"), 2, "history"),
        ((LOG, "--sharing", "text"), 1, "has no text of prompts"),
        ((LOG, "--form", "weka"), 1, "no requests of form weka; --form"),
        ((LOG, "--out", LOG), 1, "is the log itself"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    log: Path, folder: Path, words: tuple[str, ...], status: int, message: str
) -> None:
    done = kveval("trace", *words)
    assert done.exit_code == status
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not list((folder / "config/traces").glob("requests*"))


def test_a_campaign_that_names_a_log_is_told_the_command(log: Path) -> None:
    change = 'workloads={"conversation": {"profile": "trace", "trace": {"file": "requests of today.csv"}, "levels": [100], "seconds": 50, "seed": 1}}'  # noqa: E501
    done = kveval("plan", "config/campaigns/laptop-trace.yaml", "--set", change)
    assert done.exit_code == 2
    assert "kveval trace" in done.stderr
