"""Finding the results in a tree, by looking at names and sizes only: no file is opened here.

Three forms: a folder per level with guidellm-results.json[.zst] and pcp-archives/; benchmark_..._guidellm.json beside
benchmark_..._pcp.tar.xz; and single files whose names follow a pattern given with the import. Other JSON files
are listed.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kveval.config.result_names import NamePattern
from kveval.importing.settings import CONFIG_NAME
from kveval.pcp.archive.tars import TARS

REPORT_NAME = "guidellm-results.json"
ARCHIVES_NAME = "pcp-archives"
_REPORT = re.compile(rf"{re.escape(REPORT_NAME)}(\.zst)*")
_BENCHMARK = re.compile(r"(?P<stem>benchmark_\d{8}_\d{6}_(?P<parameters>.+))_guidellm\.json(\.zst)*")
_TAR = re.compile(rf"(?P<stem>.+)_pcp({'|'.join(map(re.escape, TARS))})")
_JSON = re.compile(r".+\.jsonl?(\.zst)*")
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
    def beside(self) -> list[Stamp]:
        """What says how the server ran."""
        return [*([self.config] if self.config else []), *self.logs]

    @property
    def stamps(self) -> list[Stamp]:
        """Every file that is read when a plan is made, so all but archives."""
        return [*self.reports, *self.beside]


class LeftOut(msgspec.Struct, frozen=True, order=True):
    """A folder or a JSON file that is not recognised as a result, and why."""

    place: str
    reason: str
    file: bool = False


@dataclass
class Tree:
    """A tree's content: results, what is left out, and archives that belong to no single result."""

    results: list[FoundTree] = field(default_factory=list)
    others: list[LeftOut] = field(default_factory=list)
    shared_archives: list[Stamp] = field(default_factory=list)


def scan(root: Path, pattern: NamePattern | None = None) -> Tree:
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


def _scan_folder(root: Path, folder: str, pattern: NamePattern | None, tree: Tree, depth: int) -> bool:
    """Scan one folder; return whether results were found directly in it."""
    files, folders = _entries(root, folder)
    reported = any(_REPORT.fullmatch(name) for name in files)
    patterned = [] if reported else _patterned(root, folder, files, folders, pattern)
    if reported or (CONFIG_NAME in files and not patterned):
        result = _result_folder(root, folder, files, folders)
        tree.results.append(result)
        _leave_out(folder, set(files) - {stamp.path.rpartition("/")[2] for stamp in result.reports}, pattern, tree)
        return True
    tree.results += patterned
    own = {*_benchmarks(root, folder, files, tree), *(found.place.rpartition("/")[2] for found in patterned)}
    _leave_out(folder, set(files) - own, pattern, tree)
    shared = [name for name in files if _TAR.fullmatch(name) and name not in own]
    tree.shared_archives += [_stamp(files[name], folder) for name in sorted(shared)]
    plain, any_result = [], False
    for name in sorted(folders):
        place = _join(folder, name)
        if name == ARCHIVES_NAME:
            # Beside benchmark-config.txt they are the archives of the results in this folder.
            tree.shared_archives += [] if CONFIG_NAME in files else _files_below(root, place)
        elif depth and _scan_folder(root, place, pattern, tree, depth - 1):
            any_result = True
        else:
            plain.append(place)
    if any_result:
        # A folder among results that holds none itself, and none below it, was meant to be one.
        reason = "neither benchmark-config.txt nor guidellm-results.json in it"
        tree.others += [LeftOut(place, reason) for place in plain if not _holds(place, tree)]
    return bool(own)


def _leave_out(folder: str, names: Iterable[str], pattern: NamePattern | None, tree: Tree) -> None:
    """List the JSON files of a folder that are not results."""
    reason = "its name has none of the known forms"
    if pattern is not None:
        reason = f"its name does not match the pattern {pattern.pattern!r}"
    tree.others += [LeftOut(_join(folder, name), reason, file=True) for name in names if _JSON.fullmatch(name)]


def _holds(place: str, tree: Tree) -> bool:
    """Whether a folder holds a result, or a file that is listed itself."""
    listed = (*(found.place for found in tree.results), *(other.place for other in tree.others))
    return any(found.startswith(f"{place}/") for found in listed)


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
    """Add reports with a date in their names, each with the archive of the same name; yield the files used."""
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
    root: Path, folder: str, files: dict[str, os.DirEntry[str]], folders: list[str], pattern: NamePattern | None
) -> list[FoundTree]:
    """Return the reports of the import's pattern, each with what its folder has beside benchmark-config.txt."""
    found = []
    beside = _result_folder(root, folder, files, folders) if CONFIG_NAME in files else FoundTree("", "", "")
    for name in sorted(files):
        place = _join(folder, name)
        part = None if pattern is None or _BENCHMARK.fullmatch(name) else pattern.part(place)
        if part is not None:
            stamp = _stamp(files[name], folder)
            own = {"place": place, "form": "pattern", "name": part, "reports": [stamp]}
            found.append(msgspec.structs.replace(beside, **own))
    return found


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
