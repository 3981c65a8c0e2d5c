"""The facts in the files of a result: the levels of its report, and how its server ran."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import zstandard

from kveval.host.files import is_lfs_pointer
from kveval.host.findings import Remark
from kveval.load.reports import LevelReport, LoadReport
from kveval.load.reports.data import SyntheticData
from kveval.load.reports.vllm_bench import VLLM_BENCH
from kveval.plugins.imports.remarks import remark
from kveval.plugins.imports.settings import CONFIG_NAME
from kveval.stacks.registry import IMPORTED_SERVER

# Release and size are logged when the server starts; after that there is one line per request.
_LOG_HEAD = 1 << 20


class LevelFacts(msgspec.Struct, frozen=True):
    """One benchmark of a report; times in epoch seconds.

    `tokens`: means of a completed request's prompt and answer; `run_number`: from 0, if the report says it; `turns`: of
    its conversations; `error`: why nothing can be computed of the level.
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
    run_number: int | None = None
    turns: int | None = None
    error: str | None = None


class ReportSummary(msgspec.Struct, frozen=True):
    """A report in short: what wrote it, and its levels."""

    guidellm: str = ""
    levels: Sequence[LevelFacts] = ()

    @classmethod
    def from_report(cls, report: LoadReport) -> "ReportSummary":
        """Sum a report up."""
        levels = [_level_facts(level) for level in report.levels]
        return cls(report.guidellm_version, levels)

    @property
    def remarks(self) -> list[Remark]:
        """Remarks on its numbers."""
        if self.guidellm != VLLM_BENCH:
            return []
        turns = [
            remark(
                "conversations",
                "conversations of {turns} turns, {streams} at once",
                turns=level.turns,
                streams=level.streams or "?",
            )
            for level in self.levels
            if level.turns
        ]
        return [
            remark(
                "no_zone",
                "{program} writes its date without a zone, to the second: it is read as UTC",
                program=VLLM_BENCH,
            ),
            *turns,
        ]


class ServerFacts(msgspec.Struct, frozen=True):
    """How a server ran: the text of benchmark-config.txt, and of its log the release and the tokens of its KV cache.

    `remarks`: which of the files cannot be used, and why.
    """

    settings: str = ""
    vllm: str | None = None
    device_tokens: int | None = None
    remarks: Sequence[Remark] = ()


def read_server_facts(files: Sequence[Path]) -> ServerFacts:
    """Read benchmark-config.txt and start-up logs. Never raises for what is in them, or that they cannot be read."""
    settings = ""
    remarks: list[Remark] = []
    release, tokens = None, None
    for path in files:
        try:
            if path.name == CONFIG_NAME:
                settings = path.read_text(errors="replace")
                continue
            head = _log_head(path)
        except (OSError, zstandard.ZstdError) as error:
            remarks.append(
                remark(
                    "file_unreadable",
                    "{file} cannot be read ({error})",
                    file=path.name,
                    error=str(error),
                )
            )
            continue
        if is_lfs_pointer(head):
            remarks.append(
                remark(
                    "lfs_pointer",
                    "{file}: a Git LFS pointer, not the file: git lfs pull",
                    file=path.name,
                )
            )
        if release is None and tokens is None:
            text = head.decode(errors="replace")
            release = IMPORTED_SERVER.release_in_log(text)
            tokens = IMPORTED_SERVER.startup_facts(text).get("kv_cache_tokens")
    return ServerFacts(settings, release, tokens, remarks)


def _log_head(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(_LOG_HEAD)
    while head.startswith(b"\x28\xb5\x2f\xfd"):
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        head = decompressor.decompress(head)[:_LOG_HEAD]
    return head


def _level_facts(level: LevelReport) -> LevelFacts:
    prompts = level.aggregate.prompt_tokens.completed
    outputs = level.aggregate.output_tokens.completed
    tokens = (prompts.mean, outputs.mean) if prompts and outputs else None
    done = [
        request
        for request in level.requests
        if request.status == "completed" and request.prompt_tokens
    ]
    if tokens is None and done:
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
