"""Facts read from the results of a tree, kept so that a plan opens only what is new or has changed.

The index holds no judgement: names, catalogues and the campaign are applied to it again for every plan.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import zstandard

from kveval.config.result_names import NamePattern
from kveval.host.files import is_lfs_pointer, write_bytes
from kveval.importing.trees import FoundTree, Stamp, Tree, scan
from kveval.load.reports import LevelReport, ReportFileError, read_report
from kveval.load.reports.vllm_bench import VLLM_BENCH
from kveval.spec.servers.registry import IMPORTED

_VERSION = 2
# Release and size are logged when the server starts; after that there is one line per request.
_LOG_HEAD = 1 << 20


class LevelFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One benchmark of a report; times in epoch seconds. `data` is prompt, output, prefix tokens, prefixes, turns."""

    strategy: str
    start: float
    end: float
    completed: int
    incomplete: int
    errored: int
    missing: int
    streams: int | None = None
    rate_req_s: float | None = None
    model: str | None = None
    data: tuple[int, int, int, int, int] | None = None
    tokens: tuple[float, float] | None = None
    usable: str | None = None


class IndexedReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts in the files of one result; `error` is why its report gives nothing, `code` the kind of reason."""

    report: str | None = None
    guidellm: str | None = None
    schema: int = 0
    levels: list[LevelFacts] = []
    error: str | None = None
    code: str = ""
    notes: list[str] = []
    settings: str | None = None
    vllm: str | None = None
    device_tokens: int | None = None


class _Entry(msgspec.Struct, frozen=True):
    stamps: list[Stamp]
    facts: IndexedReport


class _Index(msgspec.Struct):
    version: int = _VERSION
    tree: str = ""
    entries: dict[str, _Entry] = {}


class Catalogued(msgspec.Struct, frozen=True):
    """A result with what its files say."""

    found: FoundTree
    facts: IndexedReport


def read_tree(
    root: Path,
    pattern: NamePattern | None,
    cache: Path,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[list[Catalogued], Tree]:
    """Return every result below `root` with its facts; those of unchanged files come from the index in `cache`.

    `progress(done, total)` is called for each result that has to be read. Raises OSError when the tree cannot be read.
    """
    tree = scan(root, pattern)
    place = cache / f"{hashlib.sha256(str(root).encode()).hexdigest()[:16]}.json"
    index = _load(place)
    known = {place: entry.facts for place, entry in index.entries.items()}
    old = {place: entry.stamps for place, entry in index.entries.items()}
    stale = [found for found in tree.results if old.get(found.place) != found.stamps]
    for number, found in enumerate(stale):
        progress(number, len(stale))
        known[found.place] = read_facts(root, found)
    facts = {found.place: known[found.place] for found in tree.results}
    if stale or len(index.entries) != len(tree.results):
        entries = {found.place: _Entry(found.stamps, facts[found.place]) for found in tree.results}
        write_bytes(place, msgspec.json.encode(_Index(tree=str(root), entries=entries)))
    return [Catalogued(found, facts[found.place]) for found in tree.results], tree


def read_facts(root: Path, found: FoundTree) -> IndexedReport:
    """Read the files of one result. Never raises for their content: `error` says what is wrong."""
    settings, notes = None, []
    if found.config is not None:
        try:
            settings = (root / found.config.path).read_text(errors="replace")
        except OSError as error:
            notes.append(f"{found.config.path} cannot be read ({error.strerror})")
    vllm, device_tokens = _startup_facts(root, found.logs, notes)
    facts = IndexedReport(settings=settings, notes=notes, vllm=vllm, device_tokens=device_tokens)
    if not found.reports:
        return msgspec.structs.replace(facts, error="there is no report: GuideLLM writes it at its end")
    errors, codes = [], []
    for number, stamp in enumerate(found.reports):
        try:
            report = read_report(root / stamp.path)
        except ReportFileError as error:
            errors.append(str(error).replace(f"{root}/", ""))
            codes.append(error.code)
            continue
        errors += [f"{other.path} is left out: {stamp.path} was read" for other in found.reports[number + 1 :]]
        if report.guidellm_version == VLLM_BENCH:
            notes.append(f"{VLLM_BENCH} writes its date without a zone, to the second: it is read as UTC")
        return msgspec.structs.replace(
            facts,
            report=stamp.path,
            guidellm=report.guidellm_version,
            schema=report.schema,
            levels=[_level_facts(level) for level in report.levels],
            notes=[*notes, *errors],
        )
    return msgspec.structs.replace(facts, error="; ".join(errors), code=codes[0])


def _level_facts(level: LevelReport) -> LevelFacts:
    data, aggregate = level.data, level.aggregate
    sums = aggregate and (aggregate.prompt_tokens.completed, aggregate.output_tokens.completed)
    tokens = (sums[0].mean, sums[1].mean) if sums and sums[0] and sums[1] else None
    if tokens is None and (done := [r for r in level.requests if r.status == "completed" and r.prompt_tokens]):
        tokens = (
            sum(request.prompt_tokens or 0 for request in done) / len(done),
            sum(request.output_tokens for request in done) / len(done),
        )
    return LevelFacts(
        strategy=level.strategy,
        start=level.start,
        end=level.end,
        completed=level.completed,
        incomplete=level.incomplete,
        errored=level.errored,
        missing=level.requests_missing,
        streams=level.streams,
        rate_req_s=level.rate_req_s,
        model=level.model,
        data=None
        if data is None
        else (data.prompt_tokens, data.output_tokens, data.prefix_tokens, data.prefix_count, data.turns),
        tokens=tokens,
        usable=_why_unusable(level),
    )


def _why_unusable(level: LevelReport) -> str | None:
    """Return why nothing can be computed of a level, None if something can."""
    if not level.completed and not any(request.output_tokens for request in level.requests):
        return f"no request was completed ({level.errored} failed, {level.incomplete} were cut off)"
    delivered = level.aggregate.delivered_tokens if level.aggregate else None
    if level.requests_missing and not delivered:
        return "the report holds neither its requests nor statistics of their tokens"
    return None


def _startup_facts(root: Path, logs: Iterable[Stamp], notes: list[str]) -> tuple[str | None, int | None]:
    """Return what the server's start-up log says: its version, and the tokens that its KV cache holds.

    Adds a note if a log is only a Git LFS pointer.
    """
    for stamp in logs:
        try:
            with (root / stamp.path).open("rb") as file:
                head = file.read(_LOG_HEAD)
            while head.startswith(b"\x28\xb5\x2f\xfd"):
                head = zstandard.ZstdDecompressor().decompressobj().decompress(head)[:_LOG_HEAD]
        except (OSError, zstandard.ZstdError):
            continue
        if is_lfs_pointer(head):
            notes.append(f"{stamp.path}: a Git LFS pointer, not the file: git lfs pull")
        text = head.decode(errors="replace")
        release, tokens = IMPORTED.release_in_log(text), IMPORTED.startup_facts(text).get("kv_cache_tokens")
        if release or tokens:
            return release, tokens
    return None, None


def _load(place: Path) -> _Index:
    try:
        index = msgspec.json.decode(place.read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError):
        return _Index()
    return index if index.version == _VERSION else _Index()
