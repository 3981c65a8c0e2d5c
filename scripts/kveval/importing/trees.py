"""Finding the results in a tree, by looking at names and sizes only: no file is opened here.

Three forms: a folder per level with guidellm-results.json[.zst] and pcp-archives/; benchmark_..._guidellm.json beside
benchmark_..._pcp.tar.xz; and single files whose names follow a pattern given with the import. Other JSON files
are listed.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from kveval.campaign.result_names import NamePattern
from kveval.importing.settings import CONFIG_NAME
from pcp_parquet.archive.tars import TARS

REPORT_NAME = "guidellm-results.json"
ARCHIVES_NAME = "pcp-archives"
_REPORT = re.compile(rf"{re.escape(REPORT_NAME)}(\.zst)*")
_BENCHMARK = re.compile(
    r"(?P<stem>benchmark_\d{8}_\d{6}_(?P<parameters>.+))_guidellm\.json(\.zst)*"
)
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


class ResultFiles(msgspec.Struct, frozen=True):
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
        """The files that say how the server ran."""
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

    results: list[ResultFiles] = field(default_factory=list)
    others: list[LeftOut] = field(default_factory=list)
    shared_archives: list[Stamp] = field(default_factory=list)


def scan(root: Path, pattern: NamePattern | None = None) -> Tree:
    """Find every result below `root`, sorted by place. Raises OSError when the folder cannot be read."""
    tree = Tree()
    _scan_folder(root, "", pattern, tree, _MAX_DEPTH)
    tree.results.sort(key=lambda result: result.place)
    tree.others.sort()
    return tree


def stamps_of(root: Path, paths: Sequence[str]) -> list[Stamp]:
    """Return the files among `paths`, and below the folders among them. Raises OSError for one that is not there."""
    stamps = []
    for path in paths:
        stamps += (
            _files_below(root, path)
            if (root / path).is_dir()
            else [_stamp(path, (root / path).stat())]
        )
    return stamps


def _scan_folder(
    root: Path, folder: str, pattern: NamePattern | None, tree: Tree, depth: int
) -> bool:
    """Scan one folder; return whether results were found directly in it."""
    files, folders = _entries(root, folder)
    recorded = (
        _files_below(root, _join(folder, ARCHIVES_NAME))
        if ARCHIVES_NAME in folders
        else []
    )
    logs = [files[name] for name in sorted(files) if _LOG.fullmatch(name)]
    beside = ResultFiles(
        folder or ".",
        "",
        "",
        config=files.get(CONFIG_NAME),
        logs=logs,
        archives=recorded,
    )
    reports = sorted(
        (name for name in files if _REPORT.fullmatch(name)),
        key=lambda name: (len(name), name),
    )
    patterned = (
        []
        if reports or pattern is None
        else list(_patterned(folder, files, pattern, beside))
    )
    if reports or (CONFIG_NAME in files and not patterned):
        name = (folder or root.resolve().name).rpartition("/")[2]
        own = {
            "form": "folder",
            "name": name,
            "reports": [files[report] for report in reports],
        }
        tree.results.append(msgspec.structs.replace(beside, **own))
        tree.others += _left_out(folder, files.keys() - set(reports), pattern)
        return True
    results = [*_benchmarks(folder, files), *patterned]
    tree.results += results
    used = {
        stamp.path
        for result in results
        for stamp in (*result.reports, *result.archives)
    }
    names = [name for name in files if _join(folder, name) not in used]
    tree.others += _left_out(folder, names, pattern)
    tree.shared_archives += [
        files[name] for name in sorted(names) if _TAR.fullmatch(name)
    ]
    # Beside benchmark-config.txt they are the archives of the results in this folder.
    tree.shared_archives += [] if CONFIG_NAME in files else recorded
    below = [_join(folder, name) for name in folders if name != ARCHIVES_NAME]
    plain = [
        place
        for place in below
        if not (depth and _scan_folder(root, place, pattern, tree, depth - 1))
    ]
    if len(plain) < len(below):
        # A folder among results that holds none itself, and none below it, was meant to be one.
        reason = "neither benchmark-config.txt nor guidellm-results.json in it"
        tree.others += [
            LeftOut(place, reason) for place in plain if not _holds(place, tree)
        ]
    return bool(results)


def _left_out(
    folder: str, names: Iterable[str], pattern: NamePattern | None
) -> list[LeftOut]:
    """Return the JSON files among those of a folder that are not results."""
    reason = "its name has none of the known forms"
    if pattern is not None:
        reason = f"its name does not match the pattern {pattern.pattern!r}"
    return [
        LeftOut(_join(folder, name), reason, file=True)
        for name in names
        if _JSON.fullmatch(name)
    ]


def _holds(place: str, tree: Tree) -> bool:
    """Whether a folder holds a result, or a file that is listed itself."""
    listed = (
        *(result.place for result in tree.results),
        *(other.place for other in tree.others),
    )
    return any(other_place.startswith(f"{place}/") for other_place in listed)


def _benchmarks(folder: str, files: Mapping[str, Stamp]) -> Iterator[ResultFiles]:
    """Yield the reports with a date in their names, each with the archives of the same name."""
    tars: dict[str, list[Stamp]] = {}
    for name, stamp in sorted(files.items()):
        if tar := _TAR.fullmatch(name):
            tars.setdefault(tar["stem"], []).append(stamp)
    for name, stamp in sorted(files.items()):
        if match := _BENCHMARK.fullmatch(name):
            own = tars.get(match["stem"], [])
            yield ResultFiles(
                _join(folder, name),
                "benchmark",
                match["parameters"],
                [stamp],
                archives=own,
            )


def _patterned(
    folder: str, files: Mapping[str, Stamp], pattern: NamePattern, beside: ResultFiles
) -> Iterator[ResultFiles]:
    """Yield the reports of the import's pattern, each with what its folder has beside benchmark-config.txt."""
    for name, stamp in sorted(files.items()):
        place = _join(folder, name)
        part = None if _BENCHMARK.fullmatch(name) else pattern.part(place)
        if part is not None and beside.config is not None:
            own = {"place": place, "form": "pattern", "name": part, "reports": [stamp]}
            yield msgspec.structs.replace(beside, **own)
        elif part is not None:
            yield ResultFiles(place, "pattern", part, [stamp])


def _files_below(root: Path, folder: str) -> list[Stamp]:
    files, folders = _entries(root, folder)
    below = [
        stamp for name in folders for stamp in _files_below(root, _join(folder, name))
    ]
    return [*(files[name] for name in sorted(files)), *below]


def _entries(root: Path, folder: str) -> tuple[dict[str, Stamp], list[str]]:
    """Return the files of a folder by name, and the names of its folders, sorted, hidden ones left out."""
    with os.scandir(root / folder) as scanned:
        entries = list(scanned)
    files = {
        entry.name: _stamp(_join(folder, entry.name), entry.stat())
        for entry in entries
        if entry.is_file()
    }
    return files, sorted(
        entry.name
        for entry in entries
        if entry.is_dir() and not entry.name.startswith(".")
    )


def _stamp(path: str, status: os.stat_result) -> Stamp:
    return Stamp(path, status.st_size, status.st_mtime_ns, status.st_ino)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
