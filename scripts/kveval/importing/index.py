"""Facts read from the results of a tree, kept so that a plan opens only what is new or has changed.

The index holds no judgement: names, catalogues and the campaign are applied to it again for every plan.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import msgspec
import zstandard

from kveval.campaign.result_names import NamePattern
from kveval.host.files import is_lfs_pointer, write_bytes
from kveval.importing.trees import ResultFiles, Stamp, Tree, scan
from kveval.load.reports import LevelReport, ReportFileError
from kveval.load.reports.data import SyntheticData
from kveval.load.reports.reading import read_report
from kveval.load.reports.vllm_bench import VLLM_BENCH
from kveval.stacks.registry import IMPORTED_SERVER

_VERSION = 3
# Release and size are logged when the server starts; after that there is one line per request.
_LOG_HEAD = 1 << 20


class LevelFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One benchmark of a report; times in epoch seconds.

    `tokens`: means of a completed request's prompt and answer; `error`: why nothing can be computed of the level.
    """

    strategy: str
    start: float
    end: float
    completed: int
    incomplete: int
    errored: int
    streams: int | None = None
    rate_req_s: float | None = None
    model: str | None = None
    data: SyntheticData | None = None
    tokens: tuple[float, float] | None = None
    error: str | None = None


class IndexedReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts in the files of one result; `error` is why its report gives nothing, `code` the kind of reason."""

    report: str | None = None
    guidellm: str | None = None
    levels: list[LevelFacts] = []
    error: str | None = None
    code: str = ""
    notes: list[str] = []
    settings: str | None = None
    vllm: str | None = None
    device_tokens: int | None = None


class _Index(msgspec.Struct):
    version: int = _VERSION
    tree: str = ""
    entries: dict[str, tuple[list[Stamp], IndexedReport]] = {}


def read_tree(
    root: Path, pattern: NamePattern | None, cache: Path
) -> tuple[dict[str, IndexedReport], Tree]:
    """Return the tree at `root`, and the facts of its results by place; those of unchanged files come from `cache`.

    Raises OSError when the tree cannot be read.
    """
    tree = scan(root, pattern)
    file = cache / f"{hashlib.sha256(str(root).encode()).hexdigest()[:16]}.json"
    known = _load(file).entries
    entries = {}
    for files in tree.results:
        kept = known.get(files.place)
        if kept is None or kept[0] != files.stamps:
            kept = (files.stamps, read_facts(root, files))
        entries[files.place] = kept
    if entries != known:
        write_bytes(file, msgspec.json.encode(_Index(tree=str(root), entries=entries)))
    return {place: facts for place, (_, facts) in entries.items()}, tree


def read_facts(root: Path, files: ResultFiles) -> IndexedReport:
    """Read the files of one result. Never raises for their content: `error` says what is wrong."""
    settings, notes = None, []
    if files.config is not None:
        try:
            settings = (root / files.config.path).read_text(errors="replace")
        except OSError as error:
            notes.append(f"{files.config.path} cannot be read ({error.strerror})")
    vllm, device_tokens = _startup_facts(root, files.logs, notes)
    facts = IndexedReport(
        settings=settings, notes=notes, vllm=vllm, device_tokens=device_tokens
    )
    if not files.reports:
        return msgspec.structs.replace(
            facts, error="there is no report: GuideLLM writes it at its end"
        )
    errors, codes = [], []
    for number, stamp in enumerate(files.reports):
        try:
            report = read_report(root / stamp.path)
        except ReportFileError as error:
            errors.append(str(error).replace(f"{root}/", ""))
            codes.append(error.code)
            continue
        errors += [
            f"{other.path} is left out: {stamp.path} was read"
            for other in files.reports[number + 1 :]
        ]
        if report.guidellm_version == VLLM_BENCH:
            notes.append(
                f"{VLLM_BENCH} writes its date without a zone, to the second: it is read as UTC"
            )
        return msgspec.structs.replace(
            facts,
            report=stamp.path,
            guidellm=report.guidellm_version,
            levels=[_level_facts(level) for level in report.levels],
            notes=[*notes, *errors],
        )
    return msgspec.structs.replace(facts, error="; ".join(errors), code=codes[0])


def _level_facts(level: LevelReport) -> LevelFacts:
    prompts, outputs = (
        level.aggregate.prompt_tokens.completed,
        level.aggregate.output_tokens.completed,
    )
    tokens = (prompts.mean, outputs.mean) if prompts and outputs else None
    if tokens is None and (
        done := [
            r for r in level.requests if r.status == "completed" and r.prompt_tokens
        ]
    ):
        tokens = (
            fmean(request.prompt_tokens or 0 for request in done),
            fmean(request.output_tokens for request in done),
        )
    facts = msgspec.convert(level, LevelFacts, from_attributes=True)
    return msgspec.structs.replace(facts, tokens=tokens, error=_why_unusable(level))


def _why_unusable(level: LevelReport) -> str | None:
    """Return why nothing can be computed of a level, None if something can."""
    if not level.completed and not any(
        request.output_tokens for request in level.requests
    ):
        return f"no request was completed ({level.errored} failed, {level.incomplete} were cut off)"
    if level.requests_missing and not level.aggregate.delivered_tokens:
        return "the report holds neither its requests nor statistics of their tokens"
    return None


def _startup_facts(
    root: Path, logs: Iterable[Stamp], notes: list[str]
) -> tuple[str | None, int | None]:
    """Return what the server's start-up log says: its version, and the tokens that its KV cache holds.

    Adds a note if a log is only a Git LFS pointer.
    """
    for stamp in logs:
        try:
            with (root / stamp.path).open("rb") as file:
                head = file.read(_LOG_HEAD)
            while head.startswith(b"\x28\xb5\x2f\xfd"):
                head = (
                    zstandard.ZstdDecompressor()
                    .decompressobj()
                    .decompress(head)[:_LOG_HEAD]
                )
        except (OSError, zstandard.ZstdError):
            continue
        if is_lfs_pointer(head):
            notes.append(f"{stamp.path}: a Git LFS pointer, not the file: git lfs pull")
        text = head.decode(errors="replace")
        release, tokens = (
            IMPORTED_SERVER.release_in_log(text),
            IMPORTED_SERVER.startup_facts(text).get("kv_cache_tokens"),
        )
        if release or tokens:
            return release, tokens
    return None, None


def _load(place: Path) -> _Index:
    try:
        index = msgspec.json.decode(place.read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError):
        return _Index()
    return index if index.version == _VERSION else _Index()
