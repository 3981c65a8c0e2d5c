"""Reads a file into the neutral result: decompression, which schema it is, one decoder per schema."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from kveval.host.files import is_lfs_pointer
from kveval.load.reports import schema_03, schema_04_preview, schema_1, schema_2, vllm_bench
from kveval.load.reports.data import synthetic_data
from kveval.load.reports.model import LevelReport, LoadReport, ReportFileError
from kveval.load.reports.wire import decode_json

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Files have been compressed twice by accident; more layers are no report.
_MAX_LAYERS = 3


class _Metadata(msgspec.Struct):
    version: int | None = None
    guidellm_version: str | None = None


class _ArgsVersion(msgspec.Struct):
    model: str | None = None
    data: list[Any] | None = None


class _BackendVersion(msgspec.Struct):
    model: str | None = None


class _Spec(msgspec.Struct):
    backend: _BackendVersion | None = None
    data: list[Any] | None = None


class _Scenario(msgspec.Struct):
    spec: _Spec | None = None


class _Head(msgspec.Struct):
    """The report without its benchmarks: `args` up to 0.6, `config` from 0.7 on."""

    metadata: _Metadata | None = None
    benchmarks: list[msgspec.Raw] | None = None
    args: _ArgsVersion | None = None
    config: _Scenario | None = None

    @property
    def sources(self) -> list[Any]:
        """The data arguments."""
        spec = self.config.spec if self.config else None
        return (self.args.data if self.args else None) or (spec.data if spec else None) or []

    @property
    def model(self) -> str | None:
        """The model asked for, if it was named."""
        spec = self.config.spec if self.config else None
        backend = spec.backend if spec else None
        return (self.args.model if self.args else None) or (backend.model if backend else None)


class _Shape(msgspec.Struct):
    """The keys by which reports without a version are distinguished."""

    config: msgspec.Raw = msgspec.Raw()
    scheduler: msgspec.Raw = msgspec.Raw()
    args: msgspec.Raw = msgspec.Raw()


@dataclass(frozen=True)
class _Schema:
    """A shape of reports: what to call it, what wrote it, its number in the file (0: none), its decoder."""

    name: str
    guidellm: str
    number: int
    decode: Callable[[msgspec.Raw], LevelReport]


# A further schema is one more entry here and one more decoder, and nothing elsewhere.
_DECODERS = {
    "0.3": _Schema("the schema of GuideLLM 0.3", "0.3 or older", 0, schema_03.decode),
    "0.4 preview": _Schema("the schema of GuideLLM 0.4's previews", "0.4 preview", 0, schema_04_preview.decode),
    "0.4": _Schema("the schema of GuideLLM 0.4", "0.4", 0, schema_1.decode),
    "1": _Schema("report version 1 (GuideLLM 0.5 and 0.6)", "0.5 or 0.6", 1, schema_1.decode),
    "2": _Schema("report version 2 (GuideLLM 0.7 and 0.8)", "0.7 or 0.8", 2, schema_2.decode),
}


def read_report(path: Path) -> LoadReport:
    """Read a report of GuideLLM or of `vllm bench serve`; plain JSON, or compressed by zstd once or twice.

    Raises ReportFileError when the file is missing, empty or truncated, is no such report, has a schema without a
    decoder, or holds no benchmark.
    """
    return decode_report(_content(path), str(path))


def decode_report(content: bytes, name: str) -> LoadReport:
    """Decode a report's JSON; `name` is what errors call it. Raises ReportFileError as `read_report` does."""
    try:
        head = _head(content, name)
    except ReportFileError:
        if (report := _vllm_bench(content, name)) is None:
            raise
        return report
    if head.benchmarks is None:
        if (report := _vllm_bench(content, name)) is not None:
            return report
        raise ReportFileError(
            f"{name}: not a report of GuideLLM (it has no list 'benchmarks') or of {vllm_bench.VLLM_BENCH}",
            code="no_list_of_benchmarks",
        )
    schema = _schema(head, name)
    if not head.benchmarks:
        message = f"{name}: the report holds no benchmark; GuideLLM ended before it measured anything"
        raise ReportFileError(message, code="no_benchmark")
    data = synthetic_data(head.sources)
    levels = []
    for number, raw in enumerate(head.benchmarks):
        try:
            level = schema.decode(raw)
        except msgspec.DecodeError as error:
            message = f"{name}: benchmark {number} is not as {schema.name} has it ({error})"
            raise ReportFileError(message, code="not_its_schema", guidellm=schema.guidellm) from error
        _require_window(level, number, name)
        levels.append(replace(level, data=level.data or data, model=level.model or head.model))
    version = head.metadata.guidellm_version if head.metadata else None
    return LoadReport(guidellm_version=version or schema.guidellm, schema=schema.number, levels=tuple(levels))


def _vllm_bench(content: bytes, name: str) -> LoadReport | None:
    try:
        levels = vllm_bench.results_of(content)
    except (msgspec.DecodeError, ValueError) as error:
        message = f"{name}: not as {vllm_bench.VLLM_BENCH} writes it ({error})"
        raise ReportFileError(message, code="not_its_schema", guidellm=vllm_bench.VLLM_BENCH) from error
    if levels is None:
        return None
    for number, level in enumerate(levels):
        _require_window(level, number, name)
    return LoadReport(guidellm_version=vllm_bench.VLLM_BENCH, schema=0, levels=tuple(levels))


def _require_window(level: LevelReport, number: int, name: str) -> None:
    if not level.end > level.start > 0:
        raise ReportFileError(
            f"{name}: benchmark {number} has the empty window {level.start}..{level.end}: nothing was measured",
            code="empty_window",
        )


def _head(content: bytes, name: str) -> _Head:
    try:
        return decode_json(content, _Head)
    except msgspec.ValidationError as error:
        raise ReportFileError(f"{name}: not a GuideLLM report ({error})", code="not_a_report") from error
    except msgspec.DecodeError as error:
        raise ReportFileError(
            f"{name}: not readable as JSON ({error}); the file is truncated or damaged: measure the level again",
            code="damaged_json",
        ) from error


def _schema(head: _Head, name: str) -> _Schema:
    version = head.metadata.version if head.metadata else None
    if version is not None:
        if str(version) in _DECODERS:
            return _DECODERS[str(version)]
        raise ReportFileError(
            f"{name}: report version {version} is not supported; supported: {_supported()}",
            code="unsupported_version",
            version=version,
        )
    if not head.benchmarks:
        return _DECODERS["0.3"]
    try:
        shape = msgspec.json.decode(head.benchmarks[0], type=_Shape)
    except msgspec.DecodeError as error:
        raise ReportFileError(f"{name}: not a GuideLLM report ({error})", code="not_a_report") from error
    for generation, mark in (("0.4", shape.config), ("0.4 preview", shape.scheduler), ("0.3", shape.args)):
        if bytes(mark):
            return _DECODERS[generation]
    raise ReportFileError(
        f"{name}: not a GuideLLM report (no report version, and its benchmarks are of an unknown form);"
        f" supported: {_supported()}",
        code="unknown_shape",
    )


def _supported() -> str:
    return ", ".join(schema.name for schema in _DECODERS.values())


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReportFileError(f"{path}: the report cannot be read ({error.strerror})", code="unreadable") from error
    if is_lfs_pointer(content):
        raise ReportFileError(f"{path}: a Git LFS pointer, not the file: git lfs pull", code="lfs_pointer")
    for _ in range(_MAX_LAYERS):
        if not content.startswith(_ZSTD_MAGIC):
            break
        content = _decompressed(content, path)
    if not content.strip():
        message = f"{path}: the report is empty; GuideLLM writes it only at its end, so it was interrupted"
        raise ReportFileError(message, code="empty")
    return content


def _decompressed(content: bytes, path: Path) -> bytes:
    """Return what zstd frames hold. Raises ReportFileError for a frame that is damaged or cut off."""
    parts = []
    while content:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            parts.append(decompressor.decompress(content))
        except zstandard.ZstdError as error:
            message = f"{path}: damaged zstd file ({error}); measure the level again"
            raise ReportFileError(message, code="damaged_zstd") from error
        if not decompressor.eof:
            message = f"{path}: truncated zstd file (it ends inside a frame); measure the level again"
            raise ReportFileError(message, code="truncated_zstd")
        content = decompressor.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)
