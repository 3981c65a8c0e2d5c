"""Compressed members and tars: damage in them, links, and what is no file."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pcp_parquet.archive.files import opened
from pcp_parquet.archive.problems import ArchiveError, ProblemLog
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.tests.test_archive_damage import archive, rows
from pcp_parquet.tests.test_archive_hostile import PACK, found, volumes


@pytest.mark.parametrize("suffix", PACK)
def test_every_flipped_bit_of_a_compressed_volume_is_named_or_harmless(
    tmp_path: Path, suffix: str
) -> None:
    base = archive(tmp_path, records=400)
    volume = base.with_name("test.0")
    packed = PACK[suffix](volume.read_bytes())
    volume.unlink()
    target = base.with_name("test.0" + suffix)
    target.write_bytes(packed)
    whole = convert(base, tmp_path / "whole.parquet")
    expected = (tmp_path / "whole.parquet").read_bytes()
    assert whole.problems == []
    for at in range(0, len(packed) * 8, len(packed) * 8 // 60):
        data = bytearray(packed)
        data[at // 8] ^= 1 << at % 8
        target.write_bytes(data)
        summary = convert(base, tmp_path / "out.parquet")
        assert summary.damaged or (tmp_path / "out.parquet").read_bytes() == expected, (
            at
        )


@pytest.mark.parametrize("suffix", PACK)
def test_the_end_of_a_compressed_volume_is_verified(
    tmp_path: Path, suffix: str
) -> None:
    base = archive(tmp_path, records=400)
    volume = base.with_name("test.0")
    packed = PACK[suffix](volume.read_bytes())
    volume.unlink()
    target = base.with_name("test.0" + suffix)
    for data in (
        packed[:-1],
        packed[:-5] + b"\0" * 5,
        packed + b"garbage",
        packed + packed[:20],
    ):
        target.write_bytes(data)
        assert any(where == target.name for _, where in found(base))
    target.write_bytes(packed + b"\0" * 512)
    assert found(base) == []


def packed_tar(
    base: Path,
    target: Path,
    suffix: str = "",
    more: Callable[[tarfile.TarFile], None] | None = None,
) -> Path:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for path in sorted(base.parent.iterdir()):
            tar.add(path, arcname=path.name)
        if more:
            more(tar)
    target.write_bytes(PACK[suffix](plain.getvalue()) if suffix else plain.getvalue())
    return target


@pytest.mark.parametrize("suffix", PACK)
def test_every_flipped_bit_of_a_compressed_tar_is_named_or_harmless(
    tmp_path: Path, suffix: str
) -> None:
    base = archive(tmp_path / "archive", records=400)
    target = packed_tar(base, tmp_path / f"pcp.tar{suffix}", suffix)
    packed = target.read_bytes()
    assert convert(target, tmp_path / "whole.parquet").problems == []
    expected = (tmp_path / "whole.parquet").read_bytes()
    for at in range(7, len(packed) * 8, len(packed) * 8 // 60):
        data = bytearray(packed)
        data[at // 8] ^= 1 << at % 8
        target.write_bytes(data)
        try:
            summary = convert(target, tmp_path / "out.parquet")
        except ArchiveError:
            continue
        assert summary.damaged or (tmp_path / "out.parquet").read_bytes() == expected, (
            at
        )


def test_the_members_of_a_tar_are_given_to_pcps_own_tools_as_files(
    tmp_path: Path,
) -> None:
    base = volumes(tmp_path / "archive")
    with opened(packed_tar(base, tmp_path / "pcp.tar"), ProblemLog()) as (files,):
        copied = files.on_disk(tmp_path)
    assert copied == tmp_path / "test"
    for path in base.parent.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    with opened(base, ProblemLog()) as (files,):
        assert files.on_disk(tmp_path) == base


def test_a_damaged_header_in_a_tar_loses_one_member_and_says_so(tmp_path: Path) -> None:
    base = volumes(tmp_path / "archive")
    target = packed_tar(base, tmp_path / "pcp.tar")
    data = bytearray(target.read_bytes())
    at = data.index(b"test.1\0")
    data[at + 100] ^= 1
    target.write_bytes(data)
    assert ("truncated", "pcp.tar") in found(target)
    assert ("missing file", "test") in found(target)
    assert rows(target) == 4


def test_a_tar_cut_between_two_members_is_named(tmp_path: Path) -> None:
    base = volumes(tmp_path / "archive")
    target = packed_tar(base, tmp_path / "pcp.tar")
    data = target.read_bytes()
    target.write_bytes(data[: data.index(b"test.meta\0")])
    assert ("truncated", "pcp.tar") in found(target)


@pytest.mark.parametrize("name", ["data.bin.0", "..data.0"])
@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_links_within_a_tar_are_followed(
    tmp_path: Path, kind: bytes, name: str
) -> None:
    base = volumes(tmp_path / "archive")
    stored = base.with_name(name)
    base.with_name("test.1").rename(stored)

    def link(tar: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo("test.1")
        entry.type, entry.linkname = kind, name
        tar.addfile(entry)

    target = packed_tar(base, tmp_path / "pcp.tar", more=link)
    assert rows(target) >= 6
    assert "unreadable" not in {kind for kind, _ in found(target)}


def test_what_is_no_file_in_a_tar_is_named(tmp_path: Path) -> None:
    base = volumes(tmp_path / "archive")
    for number in (0, 1, 2):
        base.with_name(f"test.{number}").unlink()

    def odd(tar: tarfile.TarFile) -> None:
        for name, kind, target in (
            ("test.0", tarfile.SYMTYPE, "/etc/passwd"),
            ("test.1", tarfile.LNKTYPE, "nothing"),
            ("test.2", tarfile.FIFOTYPE, ""),
            ("test.3", tarfile.DIRTYPE, ""),
            ("test.4", tarfile.SYMTYPE, "test.4"),
            ("test.5", tarfile.SYMTYPE, "../test.meta"),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            tar.addfile(entry)

    named = [
        where
        for kind, where in found(packed_tar(base, tmp_path / "pcp.tar", more=odd))
        if kind == "unreadable"
    ]
    assert named == ["test.0", "test.1", "test.2", "test.3", "test.4", "test.5"]


def test_what_is_no_file_in_a_folder_is_named_and_never_opened(tmp_path: Path) -> None:
    base = volumes(tmp_path)
    for number in (0, 1, 2):
        base.with_name(f"test.{number}").unlink()
    os.mkfifo(base.with_name("test.0"))
    base.with_name("test.1").mkdir()
    base.with_name("test.2").symlink_to("nothing")
    # A folder beside the archive that is none of its files is nobody's concern.
    base.with_name("other.1").mkdir()
    for source in (tmp_path, base):
        assert [where for kind, where in found(source) if kind == "unreadable"] == [
            "test.0",
            "test.1",
            "test.2",
        ]
    with pytest.raises(ArchiveError, match="FIFO"):
        convert(base.with_name("test.0"), tmp_path / "out.parquet")


def test_nested_folders_without_end(tmp_path: Path) -> None:
    base = volumes(tmp_path / "archive")
    target = tmp_path / "pcp.tar"
    with tarfile.open(target, "w") as tar:
        for path in base.parent.iterdir():
            tar.add(path, arcname="d/" * 1500 + path.name)
    assert rows(target) == 6
    deep = tmp_path / "deep"
    deep.mkdir()
    folder = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert rows(volumes(deep).parent) == 6
    subprocess.run(["rm", "-rf", str(deep)], check=True)
