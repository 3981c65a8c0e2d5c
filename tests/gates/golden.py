"""What a gate holds: the masked text of every file of a result, and how two of them differ."""

import difflib
import hashlib
import io
import json
import lzma
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq
import zstandard

SHOWN_LINES = 60
HELD = ("*.csv", "*.json", "*.md", "*.parquet", "*.jsonl.zst", "*.yaml", "*.txt")


def masked(text: str, masks: Mapping[str, str]) -> str:
    """Replace what matches the patterns of `masks`, in their order."""
    for pattern, name in masks.items():
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


def texts_of(folder: Path, masks: Mapping[str, str]) -> dict[str, str]:
    """Return the masked text of every held file below a folder of results, by its path."""
    paths = sorted({path for pattern in HELD for path in folder.rglob(pattern)})
    return {
        path.relative_to(folder).as_posix(): masked(_text(path), masks)
        for path in paths
        if ".snakemake" not in path.parts
    }


def _text(path: Path) -> str:
    """A file as text: of a table in Parquet its schema and then its rows, of a compressed file its content."""
    if path.suffix == ".zst":
        with (
            path.open("rb") as file,
            zstandard.ZstdDecompressor().stream_reader(file) as plain,
        ):
            return plain.read().decode()
    if path.suffix != ".parquet":
        return path.read_text(encoding="utf-8")
    return _parquet_text(path)


def _parquet_text(path: Path) -> str:
    """A line for every column of a table in Parquet: type, digest of all values, the first three, least and most."""
    table = pq.read_table(path)
    metadata = sorted((table.schema.metadata or {}).items())
    lines = [f"metadata {key.decode()}: {value.decode()}" for key, value in metadata]
    lines.append(f"{table.num_rows} rows")
    for field, column in zip(table.schema, table.columns, strict=True):
        values = [json.dumps(value, default=str) for value in column.to_pylist()]
        digest = hashlib.sha256("\n".join(values).encode()).hexdigest()[:16]
        ordered = sorted({*values} - {"null"})
        ends = f"{ordered[0]} .. {ordered[-1]}" if ordered else "all null"
        lines.append(f"{field}: {digest}: {', '.join(values[:3])}, ...; {ends}")
    return "\n".join([*lines, ""])


def write_archive(path: Path, texts: Mapping[str, str]) -> None:
    """Write texts into a .tar.xz, the same bytes for the same texts."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, text in sorted(texts.items()):
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def read_archive(path: Path) -> dict[str, str]:
    """Return the texts of a .tar.xz; none without a file."""
    if not path.exists():
        return {}
    with tarfile.open(path, mode="r:xz") as tar:
        return {
            member.name: file.read().decode()
            for member in tar
            if (file := tar.extractfile(member)) is not None
        }


def difference(held: Mapping[str, str], made: Mapping[str, str]) -> str:
    """Say which files are missing, new or changed, and show the first that changed; "" if all are equal."""
    missing, new = sorted(held.keys() - made.keys()), sorted(made.keys() - held.keys())
    changed = sorted(
        name for name in held.keys() & made.keys() if held[name] != made[name]
    )
    lines = [
        f"{what}: {', '.join(names)}"
        for what, names in (("missing", missing), ("new", new), ("changed", changed))
        if names
    ]
    if changed:
        lines += _diff(changed[0], held[changed[0]], made[changed[0]])
    return "\n".join(lines)


def _diff(name: str, held: str, made: str) -> list[str]:
    """The first lines in which a text differs; of a long line, as tables have, the cells that do."""
    lines = difflib.unified_diff(
        held.splitlines(),
        made.splitlines(),
        f"{name}, held",
        f"{name}, made",
        lineterm="",
        n=1,
    )
    shown = [line[:400] for line in lines]
    more = (
        [f"... and {len(shown) - SHOWN_LINES} lines more"]
        if len(shown) > SHOWN_LINES
        else []
    )
    cells = _cells(held, made) if name.endswith(".csv") else []
    return [*cells, *shown[:SHOWN_LINES], *more]


def _cells(held: str, made: str) -> list[str]:
    """Name the cells of a CSV that differ in its first row that does."""
    before, after = held.splitlines(), made.splitlines()
    pairs = enumerate(zip(before, after, strict=False))
    number, (old, new) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
    header = before[0].split(",")
    columns = zip(header, old.split(","), new.split(","), strict=False)
    return [
        f"row {number}: {column}: {a!r} -> {b!r}" for column, a, b in columns if a != b
    ]
