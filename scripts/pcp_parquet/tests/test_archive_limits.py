"""Small files that would take hours or gigabytes, in a process of their own, and what an end by a signal leaves."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard

from pcp_parquet.archive.compression import ALLOWANCE
from pcp_parquet.tests.test_archive_damage import archive
from pcp_parquet.tests.test_archive_hostile import volumes
from pcp_parquet.tests.test_archive_packed import packed_tar
from pcp_parquet.tests.test_archive_writer import framed, indom

pytestmark = pytest.mark.workflow
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def limited(
    tmp_path: Path, source: Path, seconds: float = 10, megabytes: int = 512
) -> tuple[int, list[str]]:
    """Convert in a process of its own; its exit code and what it said. It must be within time and memory."""
    script = (
        "import json, pathlib, re, sys, time\n"
        "from pcp_parquet.tool.command import main\n"
        "code = main(sys.argv[1:])\n"
        # ru_maxrss would begin at what the process that starts this one has.
        "peak = re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1]\n"
        "print(json.dumps([code, time.process_time(), int(peak)]))\n"
    )
    out = ["-o", str(tmp_path / "limited.parquet")]
    run = subprocess.run(
        [sys.executable, "-c", script, str(source), *out],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    code, busy, peak = json.loads(run.stdout.splitlines()[-1])
    assert busy < seconds
    assert peak >> 10 < megabytes
    return code, run.stderr.splitlines()


@pytest.mark.parametrize("what", ["zeros", "marks"])
def test_a_small_file_that_expands_without_end(tmp_path: Path, what: str) -> None:
    base = volumes(tmp_path, count=1)
    volume = base.with_name("test.0")
    unit = (
        bytes(1 << 20)
        if what == "zeros"
        else (
            struct.pack(">IIIIII", 28, 1_700_000_000, 0, 0, 0, 0)[:24]
            + struct.pack(">I", 28)
        )
        * 40_000
    )
    packer = zstandard.ZstdCompressor().compressobj()
    data = (
        packer.compress(volume.read_bytes())
        + b"".join(packer.compress(unit) for _ in range(1000))
        + packer.flush()
    )
    volume.unlink()
    base.with_name("test.0.zst").write_bytes(data)
    assert len(data) < 200_000
    code, said = limited(tmp_path, base)
    assert code == 1
    assert any(
        line.startswith("too large: test.0.zst") and ALLOWANCE in line for line in said
    )


def test_a_small_tar_that_unpacks_without_end(tmp_path: Path) -> None:
    base = volumes(tmp_path / "archive", count=1)
    target = tmp_path / "pcp.tar.zst"
    compressor = zstandard.ZstdCompressor()
    with (
        compressor.stream_writer(target.open("wb")) as stream,
        tarfile.open(fileobj=stream, mode="w|") as tar,
    ):
        for path in sorted(base.parent.iterdir()):
            tar.add(path, arcname=path.name)
        entry = tarfile.TarInfo("test.1")
        entry.size = 2 << 30
        tar.addfile(entry, Zeros())
    code, said = limited(tmp_path, target)
    assert code == 1
    assert any(line.startswith("too large: pcp.tar.zst") for line in said)


class Zeros(io.RawIOBase):
    """Zeros without end."""

    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def test_a_small_meta_of_names_without_end(tmp_path: Path) -> None:
    base = volumes(tmp_path, count=1)
    meta = base.with_name("test.meta")
    packer = zstandard.ZstdCompressor(level=9).compressobj()
    parts = [packer.compress(meta.read_bytes())]
    for number in range(60):
        count, stamp = 100_000, struct.pack(">III", 1_700_000_000, 0, number)
        body = struct.pack(">I", 5) + stamp + struct.pack(">II", indom(60, 2), count)
        numbers = range(number * count, (number + 1) * count)
        body += (
            struct.pack(f">{2 * count}I", *numbers, *range(count))
            + b"x" * count
            + b"\0"
        )
        parts.append(packer.compress(framed(body)))
    meta.unlink()
    base.with_name("test.meta.zst").write_bytes(b"".join(parts) + packer.flush())
    code, said = limited(tmp_path, base)
    assert code == 1
    assert any("test.meta.zst" in line for line in said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_end_by_signal_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    base = archive(tmp_path / "archive", records=50)
    target = packed_tar(base, tmp_path / "pcp.tar")
    script = (
        "import pathlib, sys, time\n"
        "from pcp_parquet.archive.files import opened\n"
        "from pcp_parquet.archive.problems import ProblemLog\n"
        "with opened(pathlib.Path(sys.argv[1]), ProblemLog()) as found:\n"
        "    print(found[0].volumes[0].label().host, flush=True)\n"
        "    time.sleep(60)\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(target)],
        stdout=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "testhost\n"
    process.send_signal(number)
    process.communicate()
    assert list(temporary.iterdir()) == []
