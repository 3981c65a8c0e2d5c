"""Damages PCP archives at random and checks that losses are reported and nothing takes hours or gigabytes.

python benchmarks/bench_pcp_damage.py ARCHIVES_DIR... [--mutations 20000] [--archives 20] [--seed 1] [--pmlogcheck PATH]

ARCHIVES_DIR: folders of sound archives, such as qa/archives of PCP's sources. Each mutation damages a copy of one of
them, plain, compressed member by member, or packed in a tar; it is converted and the values are compared with those of
the sound archive. Failures are: losses that only pmlogcheck (of PATH, or the one given) reports, tracebacks, inputs
that take more than 10 s, and workers that take more than 512 MiB. Other unreported losses are counted by what was
damaged and how: archives that lost rows, and those that have as many rows as before, some with another value, name or
time.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import lzma
import multiprocessing
import random
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import zstandard

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from pcp_parquet.archive.compression import Decompressed  # noqa: E402
from pcp_parquet.archive.files import opened  # noqa: E402
from pcp_parquet.archive.problems import ArchiveError, ProblemLog  # noqa: E402
from pcp_parquet.archive.wire import INDEX_ENTRY, LABEL_SIZE, MAGIC  # noqa: E402
from pcp_parquet.conversion.checking import check  # noqa: E402
from pcp_parquet.conversion.conversion import convert  # noqa: E402

SECONDS, MEBIBYTES = 10.0, 512
LOST, CHANGED = SILENT = ("rows lost, silent", "rows changed, silent")
LARGEST = 4 << 20
PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
Files = dict[str, bytes]


@dataclass
class Outcome:
    """One damaged archive: what was done to it, and the result."""

    how: str
    verdict: str
    seconds: float
    detail: str = ""


@dataclass
class Tally:
    """All outcomes."""

    verdicts: Counter[str] = field(default_factory=Counter)
    silent: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    peak: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        self.verdicts[outcome.verdict] += 1
        self.slowest = max(self.slowest, outcome.seconds)
        if outcome.verdict in SILENT:
            self.silent[f"{outcome.verdict}: {outcome.how}"] += 1
        if outcome.verdict in ("traceback", "silent, named by pmlogcheck", "slow"):
            self.failures.append(f"{outcome.verdict}: {outcome.how}: {outcome.detail}")


def sound(folders: list[Path], count: int, rng: random.Random) -> list[Files]:
    """The uncompressed files of archives without any problem, small enough to be damaged thousands of times."""
    candidates = []
    for folder in folders:
        with opened(folder, ProblemLog()) as found:
            for files in found:
                size = sum(member.stored_size for member in files.members())
                if files.meta and files.index and files.volumes and size < LARGEST:
                    candidates.append((folder / files.base, dict(_parts(files))))
    rng.shuffle(candidates)
    chosen: list[Files] = []
    # Prefer archives of several volumes: they are rare, and more can go wrong with them.
    for base, members in sorted(
        candidates, key=lambda candidate: len(candidate[1]) < 4
    ):
        if len(chosen) < count and not any(
            problem.damage for problem in check(base)[1]
        ):
            data = {
                part: _plain(member.path, member.suffix)
                for part, member in members.items()
            }
            if sum(map(len, data.values())) < LARGEST:
                chosen.append(data)
    return chosen


def _parts(files) -> Iterator[tuple[str, object]]:  # type: ignore[no-untyped-def]
    yield "meta", files.meta
    yield "index", files.index
    yield from (
        (str(number), member) for number, member in sorted(files.volumes.items())
    )


def _plain(path: Path, suffix: str) -> bytes:
    data = path.read_bytes()
    if not suffix:
        return data
    stream, pieces = Decompressed(io.BytesIO(data), suffix, len(data)), []
    while piece := stream.read(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


# --- damage


def flip(data: bytearray, rng: random.Random) -> str:
    """Flip one to eight bits."""
    for _ in range(count := rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return "one flipped bit" if count == 1 else "flipped bits"


def run_of_bytes(data: bytearray, rng: random.Random) -> str:
    """Overwrite some bytes with random ones."""
    at, size = rng.randrange(len(data)), rng.choice((4, 16, 100, 1000))
    data[at : at + size] = rng.randbytes(min(size, len(data) - at))
    return "random bytes"


def zeros(data: bytearray, rng: random.Random) -> str:
    """Overwrite a page with zeros."""
    size = rng.choice((512, 4096))
    at = rng.randrange(len(data)) // size * size
    data[at : at + size] = bytes(min(size, len(data) - at))
    return "a page of zeros"


def cut(data: bytearray, rng: random.Random) -> str:
    """Cut the end off."""
    del data[rng.randrange(len(data)) :]
    return "cut off"


def cut_at_record(data: bytearray, rng: random.Random) -> str:
    """Cut the end off between two records."""
    ends = list(_record_ends(data))
    del data[rng.choice(ends) if ends else 0 :]
    return "cut off between records"


def cut_to_label(data: bytearray, rng: random.Random) -> str:
    """Leave only the label."""
    del data[next(_record_ends(data), 0) :]
    return "cut to its label"


def record_removed(data: bytearray, rng: random.Random) -> str:
    """Take a record out."""
    ends = list(_record_ends(data))
    if len(ends) > 1:
        number = rng.randrange(len(ends) - 1)
        del data[ends[number] : ends[number + 1]]
    return "a record removed"


def record_repeated(data: bytearray, rng: random.Random) -> str:
    """Write a record twice."""
    ends = list(_record_ends(data))
    if len(ends) > 1:
        number = rng.randrange(len(ends) - 1)
        data[ends[number] : ends[number]] = data[ends[number] : ends[number + 1]]
    return "a record twice"


def cut_at_index(files: Files, part: str, rng: random.Random) -> str:
    """Cut a volume, or .meta, where an entry of the index points to; most often at the last such place."""
    version = MAGIC[int.from_bytes(files["index"][4:8], "big")]
    reached = set()
    for fields in INDEX_ENTRY[version].iter_unpack(
        files["index"][LABEL_SIZE[version] :]
    ):
        volume, meta, offset = fields[-3:]
        if part == "meta":
            reached.add(meta)
        elif volume == int(part):
            reached.add(offset)
    within = sorted(offset for offset in reached if offset < len(files[part]))
    if within:
        files[part] = files[part][: rng.choice([within[-1], within[-1], *within])]
    return "cut where the index points to"


def removed(data: bytearray, rng: random.Random) -> str:
    """Take some bytes out."""
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 4, 64, 4096))]
    return "bytes removed"


def _record_ends(data: bytearray) -> Iterator[int]:
    version = MAGIC.get(int.from_bytes(data[4:8], "big"), 3)
    at = LABEL_SIZE[version]
    while at + 8 <= len(data):
        yield at
        at += max(8, struct.unpack_from(">I", data, at)[0])


DAMAGE = (flip, flip, flip, run_of_bytes, zeros, cut, cut_at_record, removed)
# Damage before a file is compressed: what a copy or a tool that ends too soon leaves, with sound checksums.
BEFORE_COMPRESSION = (
    flip,
    cut_at_record,
    cut_to_label,
    record_removed,
    record_removed,
    record_repeated,
)


def damaged(files: Files, other: Files, rng: random.Random) -> tuple[Files, str]:
    """A damaged copy of an archive and what was done to it. A name that ends in .tar holds all files."""
    files = dict(files)
    whole = rng.random()
    volumes = [part for part in files if part.isdigit()]
    if whole < 0.08:
        return _rearranged(files, other, volumes, rng)
    if whole < 0.38:
        return _incomplete(files, volumes, rng)
    form = rng.choices(("plain", "compressed", "tar"), (70, 18, 12))[0]
    if form == "tar":
        suffix = rng.choice(("", *PACK))
        packed = bytearray(_tar(files, suffix))
        how = rng.choice(DAMAGE[:-1])(packed, rng)
        return {f"pcp.tar{suffix}": bytes(packed)}, f"tar{suffix}: {how}"
    part = rng.choice(("meta", "index", *3 * volumes))
    name = part
    if form == "compressed":
        suffix = rng.choice(list(PACK))
        files[name := part + suffix] = PACK[suffix](files.pop(part))
    data = bytearray(files[name])
    how = rng.choice(DAMAGE)(data, rng)
    files[name] = bytes(data)
    kind = "volume" if part.isdigit() else part
    return files, f"{kind}{name.removeprefix(part)}: {how}"


def _incomplete(
    files: Files, volumes: list[str], rng: random.Random
) -> tuple[Files, str]:
    """A copy with a damaged file that is plain, or was compressed after it was damaged."""
    part = rng.choice(("meta", *4 * volumes))
    if rng.random() < 0.3:
        how = cut_at_index(files, part, rng)
    else:
        data = bytearray(files[part])
        how = rng.choice(BEFORE_COMPRESSION)(data, rng)
        files[part] = bytes(data)
    kind = "volume" if part.isdigit() else part
    suffix = rng.choice(("", "", ".xz", ".zst"))
    if suffix:
        files[part + suffix] = PACK[suffix](files.pop(part))
    return (
        files,
        f"{kind}{suffix}, before compression: {how}" if suffix else f"{kind}: {how}",
    )


def _rearranged(
    files: Files, other: Files, volumes: list[str], rng: random.Random
) -> tuple[Files, str]:
    what = rng.choice(("removed", "exchanged", "appended", "foreign"))
    part = rng.choice(["meta", "index", *2 * volumes])
    kind = "volume" if part.isdigit() else part
    if what == "removed":
        del files[part]
    elif what == "exchanged" and len(volumes) > 1:
        one, two = rng.sample(volumes, 2)
        files[one], files[two] = files[two], files[one]
        kind = "volume"
    elif what == "appended":
        files[part] += other.get(part, other.get("0", b""))
    else:
        what, files[part] = "foreign", other.get(part, other[next(iter(other))])
    return files, f"{kind}: {what}"


def _tar(files: Files, suffix: str) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for part, data in files.items():
            entry = tarfile.TarInfo(f"test.{part}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return PACK[suffix](plain.getvalue()) if suffix else plain.getvalue()


# --- the verdict


def hashed(parquet: Path) -> Counter[int]:
    """The rows of a converted file, as hashes, each as often as it occurs."""
    table = pq.read_table(parquet)
    frame = pd.DataFrame(
        {name: table[name].cast("string").to_pandas() for name in table.column_names}
    )
    return Counter(pd.util.hash_pandas_object(frame.fillna("-"), index=False).tolist())


def rows_of(folder: Path, out: Path) -> tuple[Counter[int], list[str], bool]:
    """The rows of an archive, its problems, and whether the exit code would be one of damage."""
    try:
        summary = convert(folder, out)
    except ArchiveError as error:
        return Counter(), [str(error)], True
    return hashed(out), [str(problem) for problem in summary.problems], summary.damaged


@dataclass
class Sound:
    """An archive before it is damaged: its rows, and the problems that are reported even so."""

    rows: Counter[int]
    said: set[str]
    pmlogcheck: set[str]


def worker(
    job: tuple[list[Files], int, int, int, str | None],
) -> tuple[list[Outcome], int]:
    """Damage archives and judge the results, in a process whose peak memory is measured."""
    archives, seed, first, count, pmlogcheck = job
    known: dict[int, Sound] = {}
    outcomes = []
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as scratch:
        for number in range(first, first + count):
            rng = random.Random(f"{seed} {number}")
            which = rng.randrange(len(archives))
            if which not in known:
                folder = _written(Path(scratch, "sound"), archives[which])
                rows, said, _ = rows_of(folder, Path(scratch, "out.parquet"))
                known[which] = Sound(rows, set(said), _pmlogcheck(pmlogcheck, folder))
            other = archives[(which + 1) % len(archives)]
            files, how = damaged(archives[which], other, rng)
            folder = _written(Path(scratch, "damaged"), files)
            outcomes.append(_judged(folder, how, number, known[which], pmlogcheck))
    return outcomes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _written(folder: Path, files: Files) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for part, data in files.items():
        (folder / (part if ".tar" in part else f"test.{part}")).write_bytes(data)
    packed = [folder / part for part in files if ".tar" in part]
    return packed[0] if packed else folder


def _judged(
    source: Path, how: str, number: int, before: Sound, pmlogcheck: str | None
) -> Outcome:
    begin = time.process_time()
    try:
        rows, said, exit_one = rows_of(
            source, source.parent / f"{source.parent.name}-out.parquet"
        )
    except Exception:  # noqa: BLE001  (any would be a finding)
        return Outcome(
            how,
            "traceback",
            0.0,
            f"mutation {number}: {traceback.format_exc(limit=-3)}",
        )
    seconds = time.process_time() - begin
    lost = sum((before.rows - rows).values())
    fewer = rows.total() < before.rows.total()
    if seconds > SECONDS:
        return Outcome(how, "slow", seconds, f"mutation {number}: {seconds:.1f} s")
    if exit_one:
        verdict = "named" if lost else "named, nothing lost"
    elif not lost:
        verdict = "harmless"
    elif set(said) - before.said:
        verdict = "named as odd"
    else:
        verdict = LOST if fewer else CHANGED
        readable = source.is_dir() and not list(source.glob("*.zst"))
        words = (
            _pmlogcheck(pmlogcheck, source) - before.pmlogcheck if readable else set()
        )
        if words:
            detail = f"mutation {number}: {lost} lost: {min(words)}"
            return Outcome(how, "silent, named by pmlogcheck", seconds, detail)
    return Outcome(how, verdict, seconds)


def _pmlogcheck(program: str | None, folder: Path) -> set[str]:
    """The lines that pmlogcheck says about an archive, wraps of counters left out; it cannot read .zst."""
    if program is None:
        return set()
    command = [program, "-w", "test"]
    run = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
    )
    return {
        line.strip() for line in (run.stderr + run.stdout).splitlines() if line.strip()
    }


def main() -> int:
    """Run; exit code 1 if anything that must not happen did."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="ARCHIVES_DIR")
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--archives", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        help="number of the first mutation, to look at one again",
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--pmlogcheck",
        default=shutil.which("pmlogcheck"),
        help="default: the one in PATH",
    )
    options = parser.parse_args()
    archives = sound(options.folders, options.archives, random.Random(options.seed))
    total = sum(sum(map(len, files.values())) for files in archives)
    several = sum(len(files) > 3 for files in archives)
    print(
        f"{len(archives)} archives, {total / 1e6:.1f} MB, {several} of several volumes"
    )
    step = max(1, min(250, options.mutations))
    jobs = [
        (
            archives,
            options.seed,
            first,
            min(step, options.first + options.mutations - first),
            options.pmlogcheck,
        )
        for first in range(options.first, options.first + options.mutations, step)
    ]
    tally = Tally()
    # A process for each job: its peak memory is that of its own inputs.
    with multiprocessing.get_context("spawn").Pool(
        options.processes, maxtasksperchild=1
    ) as pool:
        for outcomes, peak in pool.imap_unordered(worker, jobs):
            tally.peak = max(tally.peak, peak)
            for outcome in outcomes:
                tally.add(outcome)
            print(
                f"{tally.verdicts.total():,} done: {dict(tally.verdicts)}",
                file=sys.stderr,
                flush=True,
            )
    for verdict, count in tally.verdicts.most_common():
        print(f"{verdict:30} {count:7,}")
    print(
        f"slowest {tally.slowest:.2f} s of processor, peak {tally.peak >> 10} MiB of a worker"
    )
    print("silent, by what was damaged:")
    for how, count in tally.silent.most_common():
        print(f"  {how:40} {count:6,}")
    print("\n".join(tally.failures[:40]))
    return 1 if tally.failures or tally.peak >> 10 > MEBIBYTES else 0


if __name__ == "__main__":
    raise SystemExit(main())
