"""The documented forms of result trees: where the results lie in them, and what their names declare.

A folder per level with guidellm-results.json (or .yaml; packed, or not) and pcp-archives/; benchmark_..._guidellm.json
beside benchmark_..._pcp.tar.xz; oct2025-MODEL-CONFIGURATION.json. Any other file of JSON or YAML may be a report, whose
name means nothing.
Results are found by names only: no file is opened here. Names are parsed by a grammar of whole fields:

HARDWARE_SOFTWARE[-mempress]_MODEL_ARM[-10k|-20k|-20kcpu]_replicaN_rateC is a result folder. Names of dated reports have
fewer fields; `parse_fields` accepts any of the fields in this order, with known models and arms only.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kveval.plugins.imports.october_2025 import SCENARIOS
from kveval.plugins.imports.settings import CONFIG_NAME
from pcp_parquet.archive.tars import TARS

ARCHIVES_NAME = "pcp-archives"
FOLDER, DATED, OCTOBER, OTHER = "folder", "dated", "october", "other"
_PACKED = r"(\.(zst|gz|xz|bz2))*"
_REPORT = re.compile(rf"guidellm-results\.(json|ya?ml){_PACKED}")
_DATED = re.compile(
    rf"(?P<stem>benchmark_\d{{8}}_\d{{6}}_(?P<parameters>.+))_guidellm\.(json|ya?ml){_PACKED}"
)
_TAR = re.compile(rf"(?P<stem>.+)_pcp({'|'.join(map(re.escape, TARS))})")
_JSON = re.compile(rf"(?P<stem>.+)\.(?P<form>jsonl?|ya?ml){_PACKED}")
_TABLE = re.compile(rf".+\.(csv|html?){_PACKED}")
_OF_SERVER = re.compile(rf"{re.escape(CONFIG_NAME)}|vllm-startup\.log(\.zst)*")
# Trees are shallow: results, perhaps a folder for each campaign or repetition, a folder for each level.
_MAX_DEPTH = 5


@dataclass(frozen=True)
class ResultFiles:
    """The files of one result, as paths relative to the tree.

    `place` is its folder or its report, `name` what is parsed to know what it is of, unless its form is OTHER.
    `reports`: the same one, compressed in several ways.
    """

    place: str
    form: str
    name: str
    reports: Sequence[str] = ()
    server_files: Sequence[str] = ()
    recording: Sequence[str] = ()

    @property
    def folder(self) -> str:
        """The folder of its report, relative to the tree."""
        return self.place if self.form == FOLDER else self.place.rpartition("/")[0]


@dataclass
class Tree:
    """A tree's content: its results, and what is no result, with the reason."""

    root: Path
    results: list[ResultFiles] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Folder:
    path: str
    files: Sequence[str]
    folders: Sequence[str]

    def join(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    @property
    def archives(self) -> list[str]:
        """The folder of archives in it, if there is one."""
        return [self.join(ARCHIVES_NAME)] if ARCHIVES_NAME in self.folders else []

    def matching(self, pattern: re.Pattern[str]) -> list[str]:
        return [name for name in self.files if pattern.fullmatch(name)]


def scan(root: Path) -> Tree:
    """Find every result below `root`, sorted by place. Raises OSError when a folder cannot be read."""
    tree = Tree(root)
    _scan_folder(tree, "", _MAX_DEPTH)
    tree.results.sort(key=lambda result: result.place)
    return tree


def _scan_folder(tree: Tree, path: str, depth: int) -> bool:
    """Scan one folder; return whether results were found directly in it."""
    folder = _read(tree.root, path)
    name = (path or tree.root.resolve().name).rpartition("/")[2]
    reports = sorted(folder.matching(_REPORT), key=lambda name: (len(name), name))
    if reports or (CONFIG_NAME in folder.files and parse_folder(name) is not None):
        files = ResultFiles(
            path or ".",
            FOLDER,
            name,
            reports=[*map(folder.join, reports)],
            server_files=[*map(folder.join, folder.matching(_OF_SERVER))],
            recording=folder.archives,
        )
        tree.results.append(files)
        for other in folder.matching(_JSON):
            if other not in reports:
                tree.others[folder.join(other)] = f"lies in the folder of {name}"
        return True
    results = list(_files(folder))
    tree.results += results
    if not results:
        for other in folder.matching(_TABLE):
            tree.others[folder.join(other)] = (
                "a table or a page, which is not read; GuideLLM's JSON or YAML is, and JSON of vllm bench serve"
            )
    _scan_below(tree, folder, depth)
    return bool(results)


def _scan_below(tree: Tree, folder: _Folder, depth: int) -> None:
    below = [folder.join(name) for name in folder.folders if name != ARCHIVES_NAME]
    plain = [
        path for path in below if not (depth and _scan_folder(tree, path, depth - 1))
    ]
    if len(plain) == len(below):
        return
    # A folder among results that holds none itself, and none below it, was meant to be one.
    places = [*(result.place for result in tree.results), *tree.others]
    for path in plain:
        if not any(place.startswith(f"{path}/") for place in places):
            tree.others[path] = (
                "neither benchmark-config.txt nor guidellm-results.json in it"
            )


def _files(folder: _Folder) -> Iterator[ResultFiles]:
    """Yield the reports that are files of a folder, by the forms of their names."""
    tars: dict[str, list[str]] = {}
    for name in folder.files:
        if tar := _TAR.fullmatch(name):
            tars.setdefault(tar["stem"], []).append(folder.join(name))
    dated = [match for name in folder.files if (match := _DATED.fullmatch(name))]
    for match in dated:
        place, own = folder.join(match[0]), tars.get(match["stem"], [])
        name = match["parameters"]
        yield ResultFiles(place, DATED, name, [place], recording=own)
    of_dated = {match["stem"] for match in dated}
    # Of October 2025, one recording covers all.
    of_all = [path for stem in tars if stem not in of_dated for path in tars[stem]]
    of_all += folder.archives
    for name in folder.files:
        match, place = _JSON.fullmatch(name), folder.join(name)
        if match is None or _DATED.fullmatch(name):
            continue
        if match["form"].startswith("y") and f"{match['stem']}.json" in folder.files:
            # Of one run GuideLLM writes both.
            continue
        if parse_october(match["stem"]) is None:
            yield ResultFiles(place, OTHER, match["stem"], [place])
        else:
            yield ResultFiles(place, OCTOBER, match["stem"], [place], recording=of_all)


def _read(root: Path, path: str) -> _Folder:
    """Return the names of the files and of the folders in a folder, sorted, hidden folders left out."""
    with os.scandir(root / path) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    folders = [
        entry.name
        for entry in found
        if entry.is_dir() and not entry.name.startswith(".")
    ]
    return _Folder(path, [entry.name for entry in found if entry.is_file()], folders)


# --- what names declare

_NUMBER = r"[1-9]\d*"
_HARDWARE = (
    rf"(?P<hardware>(?P<nodes>{_NUMBER})x(?P<gpus>{_NUMBER})x(?P<gpu>[A-Za-z0-9.+-]+))"
)
_SOFTWARE = r"(?P<software>[^_/]+?)(?P<mempress>-mempress)?"
_SIZE = rf"(?:-(?P<thousands>{_NUMBER})k(?P<cpu>cpu)?)?"
_REPLICAS, _RATE = rf"(?P<replicas>{_NUMBER})", rf"(?P<rate>{_NUMBER})"
_FOLDER = re.compile(
    rf"{_HARDWARE}_{_SOFTWARE}_(?P<model>[^_]+)_(?P<arm>[^_]+?){_SIZE}_replica{_REPLICAS}_rate{_RATE}"
)
_OCTOBER = re.compile(rf"oct2025-(?P<model>[^_/]+)-(?P<arm>{'|'.join(SCENARIOS)})")


@dataclass(frozen=True)
class NamedHardware:
    """NODESxGPUSxGPU: 1x2xL40S is one node with two L40S."""

    nodes: int
    gpus: int
    gpu: str


@dataclass(frozen=True)
class Declared:
    """Facts that a name declares, None for the others; `cpu_blocks` from the arm's suffix, `rate` in streams."""

    arm: str | None = None
    cpu_blocks: int | None = None
    mempress: bool = False
    hardware: str | None = None
    software: str | None = None
    model: str | None = None
    replicas: int | None = None
    rate: int | None = None

    @property
    def arm_under_pressure(self) -> str | None:
        """The arm, with -mempress where the name says that the device's memory was made small."""
        if self.arm is None or not self.mempress:
            return self.arm
        return f"{self.arm}-mempress"


def parse_folder(name: str) -> Declared | None:
    """Return what a result folder's name declares; None unless the whole name follows the grammar."""
    match = _FOLDER.fullmatch(name)
    return _declared(match) if match is not None else None


def parse_fields(
    name: str, models: Collection[str], arms: Collection[str]
) -> Declared | None:
    """Return what a name declares that has some of a folder's fields, in their order, joined by `_`; else None.

    The arm is required; hardware and software come together or not at all; models and arms must be known.
    """
    match = re.fullmatch(
        rf"(?:{_HARDWARE}_{_SOFTWARE}_)?(?:{_alternatives('model', models)}_)?{_alternatives('arm', arms)}{_SIZE}"
        rf"(?:_replica{_REPLICAS})?(?:_rate{_RATE})?",
        name,
    )
    return _declared(match) if match is not None else None


def parse_october(name: str) -> Declared | None:
    """Return what the name of a report of October 2025 declares; None if it is not one of this evaluation."""
    match = _OCTOBER.fullmatch(name)
    return None if match is None else Declared(match["arm"], model=match["model"])


def parse_hardware(name: str) -> NamedHardware | None:
    """Return the parts of a hardware's name; None if it has another form."""
    match = re.fullmatch(_HARDWARE, name)
    if match is None:
        return None
    return NamedHardware(int(match["nodes"]), int(match["gpus"]), match["gpu"])


def _alternatives(name: str, known: Collection[str]) -> str:
    # Longest first, so that a name is not matched by a shorter one that it begins with.
    longest_first = sorted(known, key=len, reverse=True)
    return f"(?P<{name}>{'|'.join(map(re.escape, longest_first)) or '(?!)'})"


def _declared(match: re.Match[str]) -> Declared:
    fields = match.groupdict()
    thousands, replicas, rate = (
        int(fields.get(name) or 0) or None for name in ("thousands", "replicas", "rate")
    )
    return Declared(
        arm=fields["arm"],
        cpu_blocks=thousands and 1000 * thousands,
        mempress=fields.get("mempress") is not None,
        hardware=fields.get("hardware"),
        software=fields.get("software"),
        model=fields.get("model"),
        replicas=replicas,
        rate=rate,
    )
