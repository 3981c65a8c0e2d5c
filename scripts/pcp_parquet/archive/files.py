"""Finds the files of archives, given a folder, a base name, one file or a tar; each file is plain or compressed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pcp_parquet.archive.member import Member, Part
from pcp_parquet.archive.problems import ArchiveError, ProblemLog
from pcp_parquet.archive.tars import is_tar, unpacked

MEMBER = re.compile(
    r"(?P<base>.+)\.(?P<part>meta|index|\d{1,9})(?P<suffix>\.xz|\.gz|\.bz2|\.zst)?",
    re.DOTALL,
)
VERSION_1 = bytes.fromhex("50052601")


@dataclass
class ArchiveFiles:
    """The files of one archive; what is missing is None or absent.

    `repeated` are the volumes that are links to a volume of an earlier archive of the source.
    """

    base: str
    meta: Member | None = None
    index: Member | None = None
    volumes: dict[int, Member] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)
    odd: dict[str, str] = field(default_factory=dict)
    """Name -> kind of what is named like a member but is not a readable file: a FIFO, a folder, a broken link."""

    def add(self, part: str, member: Member) -> None:
        """Add a file; a plain file wins over a compressed one of the same name."""
        if part == "meta":
            self.meta = _plainest(self.meta, member)
        elif part == "index":
            self.index = _plainest(self.index, member)
        else:
            self.volumes[int(part)] = _plainest(self.volumes.get(int(part)), member)

    def members(self) -> list[Member]:
        """Every file present, volumes in order."""
        files = [
            self.meta,
            self.index,
            *(self.volumes[number] for number in sorted(self.volumes)),
        ]
        return [member for member in files if member is not None]

    def on_disk(self, folder: Path) -> Path:
        """The base name to give to PCP's own tools; files that lie in a tar are first copied to `folder`."""
        members = self.members()
        if members[0].part is None:
            return members[0].path.with_name(Path(self.base).name)
        for member in members:
            member.copy_to(folder / Path(member.name).name)
        return folder / Path(self.base).name

    def is_archive(self) -> bool:
        """True if at least one of the files starts with a PCP label (a log file "x.1" does not)."""
        return any(member.label() for member in self.members())


def _plainest(old: Member | None, new: Member) -> Member:
    return new if old is None or (old.suffix and not new.suffix) else old


def without_links(archives: Sequence[ArchiveFiles]) -> list[ArchiveFiles]:
    """The archives, without those whose volumes are all links (symbolic or hard) to volumes of another."""
    seen: set[tuple[object, ...]] = set()
    # An archive with .meta goes first, as its values can be read; then one that is not a link: its name is the true one
    for archive in sorted(
        archives,
        key=lambda archive: (
            archive.meta is None,
            any(member.path.is_symlink() for member in archive.members()),
        ),
    ):
        for number, member in archive.volumes.items():
            if member.identity in seen:
                archive.repeated.add(number)
            seen.add(member.identity)
    return [
        archive
        for archive in archives
        if not archive.volumes or archive.repeated < archive.volumes.keys()
    ]


def split_name(name: str) -> tuple[str, str, str] | None:
    """(base, part, compression suffix) of a member's file name, or None."""
    match = MEMBER.fullmatch(name)
    return (match["base"], match["part"], match["suffix"] or "") if match else None


@contextmanager
def opened(source: Path, problems: ProblemLog) -> Iterator[list[ArchiveFiles]]:
    """The archives of `source`: a folder (with its subfolders), a base name, one member, or a tar of these.

    Raises ArchiveError if there is no archive.
    """
    if source.is_file() and is_tar(source.name):
        with unpacked(
            source, lambda name: split_name(name) is not None, problems
        ) as parts:
            yield _sound(
                _by_base((name, source, part) for name, part in sorted(parts.items())),
                source,
            )
    elif source.is_dir():
        yield _sound(_by_base(_named(_walk(source), source)), source)
    else:
        yield [_by_name(source)]


def _by_base(
    members: Iterable[tuple[str, Path, Part | str | None]],
) -> dict[str, ArchiveFiles]:
    """The archives by their base names; given members' names, their paths, and parts of these or what else is there."""
    archives: dict[str, ArchiveFiles] = {}
    for name, path, what in members:
        parts = split_name(PurePosixPath(name).name)
        assert parts is not None
        archive = archives.setdefault(
            base := str(PurePosixPath(name).with_name(parts[0])), ArchiveFiles(base)
        )
        if isinstance(what, str):
            archive.odd[name] = what
        else:
            archive.add(parts[1], Member(path, parts[2], name, what))
    return archives


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder but the folders themselves, without recursion; a link to a folder is not entered."""
    waiting = [folder]
    while waiting:
        try:
            entries = sorted(os.scandir(waiting.pop()), key=lambda entry: entry.name)
        except OSError:
            # A folder that cannot be read is skipped.
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            yield entry


def _sound(archives: dict[str, ArchiveFiles], source: Path) -> list[ArchiveFiles]:
    result = [
        archive for _, archive in sorted(archives.items()) if archive.is_archive()
    ]
    if not result:
        raise ArchiveError(
            f"{source}: no PCP archive here (expected files like NAME.meta, NAME.index, NAME.0)"
        )
    return result


def _named(
    entries: Iterable[os.DirEntry[str]], folder: Path
) -> Iterator[tuple[str, Path, str | None]]:
    """Those of the entries that are named like members: name relative to `folder`, path, and what is no file."""
    for path in (Path(entry.path) for entry in entries if split_name(entry.name)):
        yield str(path.relative_to(folder)), path, _odd(path)


def _odd(path: Path) -> str | None:
    """The kind of thing at a path, in words; None for a regular file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return (
            f"a broken link ({error.strerror})"
            if path.is_symlink()
            else str(error.strerror)
        )
    if stat.S_ISREG(mode):
        return None
    return (
        "a folder"
        if stat.S_ISDIR(mode)
        else "not a regular file (a FIFO, a socket or a device)"
    )


def _by_name(source: Path) -> ArchiveFiles:
    if not source.parent.is_dir():
        raise ArchiveError(f"{source}: no such file or folder")
    entries = sorted(os.scandir(source.parent), key=lambda entry: entry.name)
    archives = _by_base(_named(entries, source.parent))
    parts = split_name(source.name) if source.is_file() else None
    of_name = [
        archives[base]
        for base in (source.name, parts[0] if parts else "")
        if base in archives
    ]
    for archive in of_name:
        if archive.is_archive():
            return archive
    if any(
        member.head(8)[4:] == VERSION_1
        for archive in of_name
        for member in archive.members()
    ):
        raise ArchiveError(
            f"{source}: an archive of version 1 (PCP before 2.0), which is not supported"
        )
    what = _odd(source) if source.exists() else None
    if what is not None:
        raise ArchiveError(f"{source}: {what}, not a PCP archive")
    if source.exists() or source.name in archives:
        raise ArchiveError(
            f"{source}: not a PCP archive (no file of it starts with a PCP label)"
        )
    raise ArchiveError(
        f"{source}: no such archive (expected {source.name}.meta, {source.name}.0)"
    )
