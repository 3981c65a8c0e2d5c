"""Files out of pods arrive whole, whatever happens to the connection; the pods are processes of this machine."""

import random
import shutil
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_cluster import FakeTransport

from kveval.engines.kubernetes.api import download as transfer
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.download import TransferError, collect, parse_list
from kveval.engines.kubernetes.api.errors import Refused

POD = ("bench", "collector", "main")
BLOCK = 64 * 1024


def an_api(*cuts: int, environment: dict[str, str] | None = None) -> Api:
    return Api(FakeTransport(cuts=list(cuts), environment=environment))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer.time, "sleep", lambda seconds: None)


def test_a_file_arrives_whole_though_the_connection_is_cut(tmp_path: Path) -> None:
    there, here = tmp_path / "there.bin", tmp_path / "here.bin"
    there.write_bytes(random.Random(1).randbytes(700_001))
    # The first command lists; each of the others brings a part before it is cut.
    found = collect(an_api(10**9, 100_000, 65_536, 1), *POD, str(there), here)
    assert here.read_bytes() == there.read_bytes()
    assert (found.cuts, found.received) == (3, 700_001)
    assert not here.with_name("here.bin.part").exists()


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7]), max_size=4
    ),
    cuts=st.lists(st.integers(0, 4 * BLOCK), max_size=4),
)
def test_a_folder_arrives_whole_whatever_the_sizes_and_cuts(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cuts: list[int]
) -> None:
    there, here = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("here")
    generator = random.Random(7)
    for number, size in enumerate(sizes):
        file = there / f"level {number}" / f".hidden 'quoted' \n{number}"
        file.parent.mkdir()
        file.write_bytes(generator.randbytes(size))
    found = collect(an_api(*cuts), *POD, str(there), here)
    assert contents(here) == contents(there)
    assert found.received == sum(sizes)


def test_what_is_left_of_an_earlier_attempt_is_not_taken_for_a_part(
    tmp_path: Path,
) -> None:
    there, here = tmp_path / "there.bin", tmp_path / "here.bin"
    data = random.Random(3).randbytes(500_000)
    there.write_bytes(data)
    here.write_bytes(b"an older report")
    here.with_name("here.bin.part").write_bytes(b"another run's" + data[13:300_000])
    assert collect(an_api(), *POD, str(there), here).received == 500_000
    assert here.read_bytes() == data


def test_a_file_that_was_written_anew_meanwhile_is_brought_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there.json", tmp_path / "here.json"
    there.write_bytes(b"old" * 1000)
    listed = transfer.parse_list
    monkeypatch.setattr(
        transfer,
        "parse_list",
        lambda *output: (there.write_bytes(b"new!" * 1000), listed(*output))[1],
    )
    collect(an_api(), *POD, str(there), here)
    assert here.read_bytes() == b"new!" * 1000


def test_a_file_that_keeps_changing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there.json"
    numbers = iter(range(100))
    there.write_bytes(b"first")
    listed = transfer.parse_list
    monkeypatch.setattr(
        transfer,
        "parse_list",
        lambda *output: (there.write_bytes(b"%05d" % next(numbers)), listed(*output))[
            1
        ],
    )
    with pytest.raises(TransferError) as error:
        collect(an_api(), *POD, str(there), tmp_path / "here")
    assert error.value.code == "altered"
    assert not (tmp_path / "here").exists()


def test_a_connection_that_brings_nothing_any_more_is_given_up(tmp_path: Path) -> None:
    there, here = tmp_path / "there.bin", tmp_path / "here.bin"
    there.write_bytes(random.Random(4).randbytes(400_000))
    with pytest.raises(TransferError) as error:
        collect(an_api(10**9, 131_072, *[0] * 9), *POD, str(there), here)
    assert error.value.code == "nothing_arrived"
    assert error.value.facts == {
        "attempts": 5,
        "bytes_here": 131_072,
        "bytes_there": 400_000,
    }
    assert not here.exists()


def test_why_the_api_server_refuses_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Refused(
        "forbidden",
        403,
        "Forbidden",
        code="right_missing",
        verb="create",
        resource="pods/exec",
    )
    monkeypatch.setattr(FakeTransport, "command", mock.Mock(side_effect=refused))
    with pytest.raises(TransferError) as error:
        collect(an_api(), *POD, str(tmp_path / "there"), tmp_path / "here")
    assert (error.value.status, error.value.code) == (403, "right_missing")
    assert error.value.facts == {"verb": "create", "resource": "pods/exec"}


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("find", "wc", "sh"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(TransferError, match="sha256sum: not found"):
        collect(
            an_api(environment={"PATH": str(tools)}),
            *POD,
            str(tmp_path / "file"),
            tmp_path / "here",
        )


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("report.json", "results"):
        with pytest.raises(TransferError, match=rf"{name}.*No such file"):
            collect(an_api(), *POD, str(tmp_path / name), tmp_path / "here")


def test_links_are_left_out_and_an_empty_folder_is_none_less(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "empty").mkdir(parents=True)
    (there / "link").symlink_to("/etc/passwd")
    (there / "loop").symlink_to(there)
    collect(an_api(), *POD, str(there), here)
    assert not here.exists()
    (there / "one").write_bytes(b"1")
    collect(an_api(), *POD, str(there), here)
    assert contents(here) == {"one": b"1"}


@pytest.mark.parametrize("path", ["../x", "/etc/x", "results/../../x", "resultsx", ""])
def test_a_pod_cannot_name_a_place_outside_the_folder(path: str) -> None:
    with pytest.raises(TransferError, match="unexpected entry"):
        parse_list(b"1 %s %s\0end\0" % (b"0" * 64, path.encode()), "results")
