"""A death that the catalogue of known defects has, and the many that look like it and are not."""

from pathlib import Path

import msgspec
import pytest
from pydantic import ValidationError
from tests.support.config_files import BASE, CONFIG, LMCACHE, RAW
from tests.support.known_crash import KNOWN, LOG, NAME

from kveval.campaign.catalogue import KnownDefect
from kveval.configuration.loading import load_config
from kveval.engines.servers.errors import DeploymentError, ServerDied
from kveval.load.guidellm import LoadError
from kveval.measure.known_defects import recognised

CONFIGURATION = load_config(RAW["config"], CONFIG)
LMCACHE_RUN = CONFIGURATION.specification(LMCACHE)


def died(folder: Path, text: str = LOG, before: str = "") -> ServerDied:
    log = folder / "server.log"
    log.write_text(before + text)
    return ServerDied("the server died", log=log, offset=len(before.encode()))


def test_the_crash_is_recognised_by_its_traceback(tmp_path: Path) -> None:
    assert recognised(died(tmp_path), LMCACHE_RUN, KNOWN) == NAME


@pytest.mark.parametrize(
    ("was", "instead"),
    [
        (
            "assert req_id in self.requests",
            "assert RequestStatus.is_finished(req.status)",
        ),
        ("in _update_from_kv_xfer_finished", "in _free_blocks"),
        ("sched/scheduler.py", "sched/other.py"),
        ("/vllm/v1/core/sched", "/own_vllm/v1/core/sched"),
        ("] AssertionError", "] KeyError: 'req'"),
    ],
)
def test_another_place_in_the_code_is_another_failure(
    tmp_path: Path, was: str, instead: str
) -> None:
    assert was in LOG
    assert (
        recognised(died(tmp_path, LOG.replace(was, instead)), LMCACHE_RUN, KNOWN)
        is None
    )


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.27.1", None),
        ("0.28.0", NAME),
        ("0.32.0", NAME),
        ("0.32.0+cpu", NAME),
        ("0.32.1", None),
        ("0.33.0rc1", None),
    ],
)
def test_a_version_that_is_not_known_to_have_it_is_not_excused(
    tmp_path: Path, version: str, name: str | None
) -> None:
    run = msgspec.structs.replace(
        LMCACHE_RUN, versions={**LMCACHE_RUN.versions, "vllm": version}
    )
    assert recognised(died(tmp_path), run, KNOWN) == name


def test_an_arm_without_the_connector_cannot_have_it(tmp_path: Path) -> None:
    assert recognised(died(tmp_path), CONFIGURATION.specification(BASE), KNOWN) is None


def test_what_an_earlier_server_of_the_run_had_written_does_not_count(
    tmp_path: Path,
) -> None:
    assert (
        recognised(
            died(tmp_path, "ValueError: no memory\n", before=LOG), LMCACHE_RUN, KNOWN
        )
        is None
    )


def test_only_the_servers_own_death_counts(tmp_path: Path) -> None:
    log = died(tmp_path).facts["log"]
    assert (
        recognised(
            DeploymentError("the caches were not emptied", log=log), LMCACHE_RUN, KNOWN
        )
        is None
    )
    assert recognised(ServerDied("without a log"), LMCACHE_RUN, KNOWN) is None
    assert (
        recognised(
            ServerDied("its log is gone", log=tmp_path / "none.log"), LMCACHE_RUN, KNOWN
        )
        is None
    )
    # A load generator that was killed gives up all its requests.
    after_another = died(tmp_path)
    after_another.__cause__ = LoadError("GuideLLM failed", code="generator_failed")
    assert recognised(after_another, LMCACHE_RUN, KNOWN) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("versions", {}),
        ("versions", {"vllm": "0.32 or so"}),
        ("link", "vllm#43226"),
        ("effect", ""),
        ("raised_in", {}),
    ],
)
def test_an_entry_says_which_versions_where_and_what_it_does(
    key: str, value: object
) -> None:
    with pytest.raises(ValidationError):
        KnownDefect.model_validate({**KNOWN[NAME].model_dump(), key: value})
