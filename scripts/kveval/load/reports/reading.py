"""Reads a file into the neutral result: decompression, which schema it is, one decoder per schema."""

import bz2
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml
import zstandard

from kveval.host.files import is_lfs_pointer
from kveval.load.reports import (
    LevelReport,
    LoadReport,
    ReportFileError,
    schemas,
    vllm_bench,
)
from kveval.load.reports.data import synthetic_data
from kveval.load.reports.wire import decode_json

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# How files of other programs begin, and what unpacks them.
_OTHER_PACKED: Mapping[bytes, tuple[str, Callable[[bytes], bytes]]] = {
    b"\x1f\x8b": ("gzip", gzip.decompress),
    b"\xfd7zXZ": ("xz", lzma.decompress),
    b"BZh": ("bzip2", bz2.decompress),
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_YAML = re.compile(rb"^benchmarks:", re.MULTILINE)
# Files have been compressed twice by accident; more layers are no report.
_MAX_LAYERS = 3
# Before its benchmarks a report has its version and its arguments.
_HEAD_BYTES = 1 << 15


class _Metadata(msgspec.Struct):
    version: int | None = None
    guidellm_version: str | None = None


class _Asked(msgspec.Struct):
    """The model and the data that the load generator was asked for."""

    model: str | None = None
    data: list[Any] | None = None


class _Spec(msgspec.Struct):
    backend: _Asked | None = None
    data: list[Any] | None = None


class _Scenario(msgspec.Struct):
    spec: _Spec | None = None


class _Head(msgspec.Struct):
    """The report without its benchmarks: `args` up to 0.6, `config` from 0.7 on."""

    metadata: _Metadata | None = None
    benchmarks: list[msgspec.Raw] | None = None
    args: _Asked | None = None
    config: _Scenario | None = None

    @property
    def asked(self) -> _Asked:
        """The model and the data arguments, as far as they are named."""
        if self.args is not None:
            return self.args
        spec = (self.config.spec if self.config else None) or _Spec()
        return _Asked(spec.backend.model if spec.backend else None, spec.data)


class _Shape(msgspec.Struct):
    """The keys by which reports without a version are distinguished."""

    config: msgspec.Raw = msgspec.Raw()
    scheduler: msgspec.Raw = msgspec.Raw()
    args: msgspec.Raw = msgspec.Raw()


# GuideLLM -> its decoder. A further schema is one more entry here and one more decoder, and nothing elsewhere.
_DECODERS: Mapping[str, Callable[[msgspec.Raw], LevelReport]] = {
    "0.3 or older": schemas.decode_03,
    "0.4 preview": schemas.decode_preview,
    "0.4": schemas.decode_1,
    "0.5 or 0.6": schemas.decode_1,
    "0.7 or 0.8": schemas.decode_2,
}
# The number of a schema in the file, where it has one.
_NUMBERED = {1: "0.5 or 0.6", 2: "0.7 or 0.8"}


def read_report(path: Path, name: str = "") -> LoadReport:
    """Read a report of GuideLLM, JSON or YAML, or of `vllm bench serve`; plain, or packed by zstd, gzip, xz or bzip2.

    `name`: what errors call it, by default its path. Raises ReportFileError when the file is missing, empty or
    truncated, is no such report, has a schema without a decoder, or holds no benchmark.
    """
    name = name or str(path)
    return decode_report(_content(path, name), name)


def require_report(path: Path) -> None:
    """Raise ReportFileError, as `read_report` does, unless a file begins like a report of GuideLLM.

    Reads the beginning alone where that is enough: a plan does this with every report.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    for _ in range(_MAX_LAYERS):
        if head.startswith(_ZSTD_MAGIC):
            head = _head_of_frame(head)
    is_json = head.lstrip().startswith(b"{") and b'"benchmarks"' in head
    if not is_json and not _YAML.search(head):
        read_report(path)


def _head_of_frame(head: bytes) -> bytes:
    """Return what the beginning of a zstd frame holds; nothing of a damaged one."""
    try:
        return zstandard.ZstdDecompressor().stream_reader(head).read(_HEAD_BYTES)
    except zstandard.ZstdError:
        return b""


def decode_report(content: bytes, name: str) -> LoadReport:
    """Decode a report's JSON; `name` is what errors call it. Raises ReportFileError as `read_report` does."""
    try:
        head, benchmarks = _head(content, name)
    except ReportFileError:
        if (report := _vllm_bench(content, name)) is None:
            raise
        return report
    metadata = head.metadata or _Metadata()
    guidellm = _guidellm(metadata.version, benchmarks, name)
    data = synthetic_data(head.asked.data or [])
    levels = []
    for position, raw in enumerate(benchmarks):
        try:
            level = _DECODERS[guidellm](raw)
        except msgspec.DecodeError as error:
            message = f"{name}: benchmark {position} is not as GuideLLM {guidellm} writes it ({error})"
            raise ReportFileError(
                message, code="not_its_schema", guidellm=guidellm
            ) from error
        _require_window(level, position, name)
        levels.append(
            replace(
                level, data=level.data or data, model=level.model or head.asked.model
            )
        )
    return LoadReport(
        guidellm_version=metadata.guidellm_version or guidellm, levels=tuple(levels)
    )


def _vllm_bench(content: bytes, name: str) -> LoadReport | None:
    try:
        levels = vllm_bench.results_of(content)
    except (msgspec.DecodeError, ValueError) as error:
        message = f"{name}: not as {vllm_bench.VLLM_BENCH} writes it ({error})"
        raise ReportFileError(
            message, code="not_its_schema", guidellm=vllm_bench.VLLM_BENCH
        ) from error
    if levels is None:
        return None
    for number, level in enumerate(levels):
        _require_window(level, number, name)
    return LoadReport(guidellm_version=vllm_bench.VLLM_BENCH, levels=tuple(levels))


def _require_window(level: LevelReport, number: int, name: str) -> None:
    if not level.end > level.start > 0:
        raise ReportFileError(
            f"{name}: benchmark {number} has the empty window {level.start}..{level.end}: nothing was measured",
            code="empty_window",
        )


def _head(content: bytes, name: str) -> tuple[_Head, list[msgspec.Raw]]:
    """Return a report of GuideLLM and its benchmarks."""
    try:
        head = decode_json(content, _Head)
    except msgspec.ValidationError as error:
        raise ReportFileError(
            f"{name}: not a GuideLLM report ({error})", code="not_a_report"
        ) from error
    except msgspec.DecodeError as error:
        why, code = _why_no_json(content, error)
        raise ReportFileError(f"{name}: {why}", code=code) from error
    if head.benchmarks is None:
        raise ReportFileError(
            f"{name}: not a report of GuideLLM (it has no list 'benchmarks') or of {vllm_bench.VLLM_BENCH}",
            code="no_list_of_benchmarks",
        )
    return head, head.benchmarks


def _why_no_json(content: bytes, error: msgspec.DecodeError) -> tuple[str, str]:
    """Return what is wrong with a file that is no JSON, and its code: lines of another program, or a part missing."""
    text = content.decode(errors="replace")
    begin = 0
    if not text.lstrip().startswith("{"):
        match = re.search(r"^\s*\{", text, re.MULTILINE)
        line = text.lstrip().partition("\n")[0][:80]
        if match is None:
            return f"no JSON; it begins with {line!r}", "damaged_json"
        begin = match.start()
    try:
        _, end = json.JSONDecoder().raw_decode(text[begin:].lstrip())
    except ValueError:
        if begin:
            return f"its first line is no JSON: {line!r}", "other_lines"
        message = f"not readable as JSON ({error}); the file is truncated or damaged: measure the level again"
        return message, "damaged_json"
    if begin:
        return (
            f"line 1 is of another program: {line!r}; the report begins in line {text.count(chr(10), 0, begin) + 1}: take out"
            " what is before it",
            "other_lines",
        )
    whole = text[: len(text) - len(text.lstrip()) + end]
    line = text[len(whole) :].lstrip().partition("\n")[0][:80]
    number = whole.count("\n") + 1
    return (
        f"the report is whole and ends in line {number}; behind it is {line!r}, of another program: take it out",
        "other_lines",
    )


def _guidellm(version: int | None, benchmarks: Sequence[msgspec.Raw], name: str) -> str:
    """Return which releases of GuideLLM write reports of this form, by the version in the file or the benchmarks."""
    supported = f"supported: GuideLLM {', '.join(_DECODERS)}"
    if version is not None and version not in _NUMBERED:
        message = f"{name}: report version {version} is not supported; {supported}"
        raise ReportFileError(message, code="unsupported_version", version=version)
    if not benchmarks:
        message = f"{name}: the report holds no benchmark; GuideLLM ended before it measured anything"
        raise ReportFileError(message, code="no_benchmark")
    if version is not None:
        return _NUMBERED[version]
    try:
        shape = msgspec.json.decode(benchmarks[0], type=_Shape)
    except msgspec.DecodeError as error:
        raise ReportFileError(
            f"{name}: not a GuideLLM report ({error})", code="not_a_report"
        ) from error
    for guidellm, mark in {
        "0.4": shape.config,
        "0.4 preview": shape.scheduler,
        "0.3 or older": shape.args,
    }.items():
        if bytes(mark):
            return guidellm
    message = f"{name}: not a GuideLLM report (no report version, and its benchmarks are of an unknown form); {supported}"
    raise ReportFileError(message, code="unknown_shape")


def _content(path: Path, name: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReportFileError(
            f"{name}: the report cannot be read ({error.strerror})", code="unreadable"
        ) from error
    if is_lfs_pointer(content):
        raise ReportFileError(
            f"{name}: a Git LFS pointer, not the file: git lfs pull", code="lfs_pointer"
        )
    for _ in range(_MAX_LAYERS):
        content = _unpacked(content, name)
    content = content.removeprefix(_BYTE_ORDER_MARK)
    if not content.strip():
        message = f"{name}: the report is empty; GuideLLM writes it only at its end, so it was interrupted"
        raise ReportFileError(message, code="empty")
    if content.lstrip()[:1] != b"{" and _YAML.search(content):
        return _json_of_yaml(content, name)
    return content


def _json_of_yaml(content: bytes, name: str) -> bytes:
    """Return a report in YAML as JSON. Raises ReportFileError for one that is damaged."""
    try:
        return json.dumps(yaml.load(content, yaml.CSafeLoader), default=str).encode()
    except (yaml.YAMLError, ValueError) as error:
        why = " ".join(str(error).split())
        message = f"{name}: not readable as YAML ({why})"
        raise ReportFileError(message, code="damaged_yaml") from error


def _unpacked(content: bytes, name: str) -> bytes:
    """Return what a file holds that a program packed, and others as they are. Raises ReportFileError if it is damaged."""
    if content.startswith(_ZSTD_MAGIC):
        return _decompressed(content, name)
    for begin, (program, unpack) in _OTHER_PACKED.items():
        if not content.startswith(begin):
            continue
        try:
            return unpack(content)
        except (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as error:
            message = f"{name}: damaged or truncated {program} file ({error})"
            raise ReportFileError(message, code="damaged_packing") from error
    return content


def _decompressed(content: bytes, name: str) -> bytes:
    """Return what zstd frames hold. Raises ReportFileError for a frame that is damaged or cut off."""
    parts = []
    while content:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            parts.append(decompressor.decompress(content))
        except zstandard.ZstdError as error:
            message = f"{name}: damaged zstd file ({error}); measure the level again"
            raise ReportFileError(message, code="damaged_zstd") from error
        if not decompressor.eof:
            message = f"{name}: truncated zstd file (it ends inside a frame); measure the level again"
            raise ReportFileError(message, code="truncated_zstd")
        content = decompressor.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)
