"""Finding the results in a tree, by looking at names and sizes only: no file is opened here.

Three forms: a folder per level with guidellm-results.json[.zst] and pcp-archives/; benchmark_..._guidellm.json beside
benchmark_..._pcp.tar.xz; and single files whose names follow a pattern given with the import.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kveval.importing.settings import CONFIG_NAME

REPORT_NAME = "guidellm-results.json"
ARCHIVES_NAME = "pcp-archives"
_REPORT = re.compile(rf"{re.escape(REPORT_NAME)}(\.zst)*")
_BENCHMARK = re.compile(r"(?P<stem>benchmark_\d{8}_\d{6}_(?P<parameters>.+))_guidellm\.json(\.zst)*")
_TAR = re.compile(r"(?P<stem>.+)_pcp\.(tar(\.(xz|zst|gz|bz2))?|tgz|txz|tzst)")
_LOG = re.compile(r"vllm-startup\.log(\.zst)*")
# Trees are shallow: results, perhaps a folder for each campaign or repetition, a folder for each level.
_MAX_DEPTH = 5


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was found; a change of any of these means another content. `path` is relative to the tree."""

    path: str
    size: int
    mtime_ns: int
    inode: int


class FoundTree(msgspec.Struct, frozen=True):
    """The files of one result. `place` is its folder or report, `name` what its name is parsed from."""

    place: str
    form: str
    name: str
    reports: list[Stamp] = []
    config: Stamp | None = None
    logs: list[Stamp] = []
    archives: list[Stamp] = []

    @property
    def stamps(self) -> list[Stamp]:
        """Every file that something is read from when a plan is made; archives are not."""
        return [*self.reports, *([self.config] if self.config else []), *self.logs]


@dataclass
class Tree:
    """A tree's content: results, places beside results that are none, and archives that belong to no single result."""

    results: list[FoundTree] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    shared_archives: list[Stamp] = field(default_factory=list)


def scan(root: Path, pattern: re.Pattern[str] | None = None) -> Tree:
    """Find every result below `root`, sorted by place. Raises OSError when the folder cannot be read."""
    tree = Tree()
    _scan_folder(root, "", pattern, tree, _MAX_DEPTH)
    tree.results.sort(key=lambda found: found.place)
    tree.others.sort()
    return tree


def stamps_of(root: Path, paths: Sequence[str]) -> list[Stamp]:
    """Return the files among `paths`, and below the folders among them. Raises OSError for one that is not there."""
    found = []
    for path in paths:
        if (root / path).is_dir():
            found += _files_below(root, path)
        else:
            status = (root / path).stat()
            found.append(Stamp(path, status.st_size, status.st_mtime_ns, status.st_ino))
    return found


def _scan_folder(root: Path, folder: str, pattern: re.Pattern[str] | None, tree: Tree, depth: int) -> bool:
    """Take in one folder; return whether results were found directly in it."""
    files, folders = _entries(root, folder)
    if any(_REPORT.fullmatch(name) or name == CONFIG_NAME for name in files):
        tree.results.append(_result_folder(root, folder, files, folders))
        return True
    own = set(_benchmarks(root, folder, files, tree)) | set(_patterned(root, folder, files, pattern, tree))
    shared = [name for name in files if _TAR.fullmatch(name) and name not in own]
    tree.shared_archives += [_stamp(files[name], folder) for name in sorted(shared)]
    plain, any_result = [], False
    for name in sorted(folders):
        place = _join(folder, name)
        if name == ARCHIVES_NAME:
            tree.shared_archives += _files_below(root, place)
        elif depth and _scan_folder(root, place, pattern, tree, depth - 1):
            any_result = True
        else:
            plain.append(place)
    if any_result:
        # A folder among results that holds none itself, and none below it, was meant to be one.
        tree.others += [place for place in plain if not _holds_results(place, tree)]
    return bool(own)


def _holds_results(place: str, tree: Tree) -> bool:
    return any(found.place.startswith(f"{place}/") for found in tree.results)


def _result_folder(root: Path, folder: str, files: dict[str, os.DirEntry[str]], folders: list[str]) -> FoundTree:
    reports = sorted((name for name in files if _REPORT.fullmatch(name)), key=lambda name: (len(name), name))
    logs = sorted(name for name in files if _LOG.fullmatch(name))
    archives = _files_below(root, _join(folder, ARCHIVES_NAME)) if ARCHIVES_NAME in folders else []
    return FoundTree(
        place=folder or ".",
        form="folder",
        name=(folder or root.resolve().name).rpartition("/")[2],
        reports=[_stamp(files[name], folder) for name in reports],
        config=_stamp(files[CONFIG_NAME], folder) if CONFIG_NAME in files else None,
        logs=[_stamp(files[name], folder) for name in logs],
        archives=archives,
    )


def _benchmarks(root: Path, folder: str, files: dict[str, os.DirEntry[str]], tree: Tree) -> Iterator[str]:
    """Take in reports with a date in their names, each with the archive of the same name; yield the files used."""
    archives: dict[str, list[str]] = {}
    for name in files:
        if match := _TAR.fullmatch(name):
            archives.setdefault(match["stem"], []).append(name)
    for name in sorted(files):
        match = _BENCHMARK.fullmatch(name)
        if match is None:
            continue
        own = sorted(archives.get(match["stem"], []))
        tree.results.append(
            FoundTree(
                place=_join(folder, name),
                form="benchmark",
                name=match["parameters"],
                reports=[_stamp(files[name], folder)],
                archives=[_stamp(files[archive], folder) for archive in own],
            )
        )
        yield from (name, *own)


def _patterned(
    root: Path, folder: str, files: dict[str, os.DirEntry[str]], pattern: re.Pattern[str] | None, tree: Tree
) -> Iterator[str]:
    for name in sorted(files):
        if pattern is not None and pattern.fullmatch(name) and not _BENCHMARK.fullmatch(name):
            stamp = _stamp(files[name], folder)
            tree.results.append(FoundTree(place=stamp.path, form="pattern", name=name, reports=[stamp]))
            yield name


def _files_below(root: Path, folder: str) -> list[Stamp]:
    files, folders = _entries(root, folder)
    found = [_stamp(files[name], folder) for name in sorted(files)]
    for name in sorted(folders):
        found += _files_below(root, _join(folder, name))
    return found


def _entries(root: Path, folder: str) -> tuple[dict[str, os.DirEntry[str]], list[str]]:
    files, folders = {}, []
    with os.scandir(root / folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if not entry.name.startswith("."):
                    folders.append(entry.name)
            elif entry.is_file():
                files[entry.name] = entry
    return files, folders


def _stamp(entry: os.DirEntry[str], folder: str) -> Stamp:
    status = entry.stat()
    return Stamp(_join(folder, entry.name), status.st_size, status.st_mtime_ns, status.st_ino)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
