"""Failures by their codes."""

import pickle
from pathlib import Path

import pytest

from kveval.engines.servers.errors import ServerDied
from kveval.host.errors import Failure, FileFailure
from kveval.store.store import StoreError


def test_a_failure_has_the_code_of_its_class_or_its_own() -> None:
    assert ServerDied("gone").code == "server_died"
    refused = Failure("port 80 is taken", code="port_taken", port=80)
    assert (str(refused), refused.code, refused.facts) == (
        "port 80 is taken",
        "port_taken",
        {"port": 80},
    )


def test_a_failure_survives_being_sent_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(Failure("full", code="disk_full", free_bytes=3)))
    assert (str(sent), sent.code, sent.facts) == (
        "full",
        "disk_full",
        {"free_bytes": 3},
    )


def test_a_failure_of_its_own_arguments_survives_it_as_well() -> None:
    failure = StoreError(
        Path("run-1"), "is gone", "missing", path=Path("run-1/run.json")
    )
    sent = pickle.loads(pickle.dumps(failure))
    assert (str(sent), sent.code, sent.path) == (str(failure), "missing", failure.path)
    assert vars(sent) == vars(failure)


@pytest.mark.parametrize(
    ("folder", "text"),
    [("a/b.json", "is empty"), ("a", "b.json: is empty"), ("", "a/b.json: is empty")],
)
def test_the_failure_of_a_file_is_named_within_its_folders(
    folder: str, text: str
) -> None:
    failure = FileFailure(Path("a/b.json"), "is empty")
    assert str(failure) == "a/b.json: is empty"
    assert failure.within(Path(folder)) == text
