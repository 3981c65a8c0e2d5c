"""The files of a PCP archive: found, packed, and asked and rewritten with PCP's own tools."""

import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import zstandard

from kveval.host.files import make_last, replacing
from kveval.pcp.installation import Pcp, RecordingError, base_environment, find_pcp
from pcp_parquet.archive.files import split_name


def archive_files(base: Path) -> list[Path]:
    """Return the files of the archive ``base``: volumes, .meta and .index."""
    candidates = ((path, split_name(path.name)) for path in base.parent.glob("*"))
    return sorted(
        path
        for path, parts in candidates
        if parts is not None and parts[0] == base.name
    )


def has_metric(pcp: Pcp, base: Path, metric: str) -> bool:
    """Whether the archive, possibly still being written, has a value of ``metric``."""
    result = _call(pcp, base, "pmprobe", "-a", base.name, metric)
    fields = result.stdout.split()
    return result.returncode == 0 and len(fields) == 2 and int(fields[1]) > 0


def rewrite_archive(
    source: Path, target: Path, prefixes: Mapping[str, str], host: str
) -> None:
    """Copy the archive ``source`` to ``target``, with ``host`` as its host name.

    Metrics below each key of ``prefixes`` are renamed to lie below its value.
    RecordingError if the archive cannot be read or written.
    """
    pcp = find_pcp()
    names = _run(
        pcp,
        source,
        "pminfo",
        "-a",
        source.name,
        what=f"no metrics in the PCP archive {source}",
    ).split()
    rules = [
        f"metric {name} {{ name -> {new}{name.removeprefix(old)} }}"
        for name in names
        for old, new in prefixes.items()
        if name.startswith(f"{old}.")
    ]
    configuration = source.parent / "rewritten.conf"
    configuration.write_text(
        "\n".join([f"global {{ hostname -> {host} }}", *rules, ""])
    )
    what = f"the PCP archive {source} cannot be rewritten"
    _run(
        pcp,
        source,
        "pmlogrewrite",
        "-c",
        configuration.name,
        source.name,
        str(target.absolute()),
        what=what,
    )


def pack_archives(bases: Sequence[Path], target: Path) -> None:
    """Pack the files of archives into ``target``, a .tar.zst that is written completely or not at all.

    Paths in it are relative to the folder that the archives have in common. RecordingError if one is missing.
    """
    files = [archive_files(base) for base in bases]
    if not all(files):
        raise RecordingError(
            f"there is no PCP archive {bases[files.index([])]}", code="no_archive"
        )
    root = os.path.commonpath([base.parent for base in bases])
    compressor = zstandard.ZstdCompressor(level=9, write_checksum=True)
    with (
        replacing(target) as partial,
        compressor.stream_writer(partial.open("wb")) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in (path for members in files for path in members):
            tar.add(path, arcname=path.relative_to(root), filter=_anonymous)
    make_last([target.parent])


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _call(
    pcp: Pcp, base: Path, program: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    # Run in the archive's folder with its bare name, since PCP splits paths at commas.
    return subprocess.run(
        [pcp.program(program), *arguments],
        cwd=base.parent,
        env=base_environment(os.environ),
        capture_output=True,
        text=True,
        errors="replace",
    )


def _run(pcp: Pcp, base: Path, program: str, *arguments: str, what: str) -> str:
    result = _call(pcp, base, program, *arguments)
    if result.returncode != 0:
        lines = (result.stderr + result.stdout).strip().splitlines()
        cause = lines[0] if lines else f"exit status {result.returncode}"
        raise RecordingError(
            f"{what}: {program}: {cause}", code="tool_failed", program=program
        )
    return result.stdout
