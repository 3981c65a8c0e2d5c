"""Failures by their codes."""

import pickle

from kveval.engines.servers.errors import ServerDied
from kveval.host.errors import Failure


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
