"""The wide table: names, order, types, rows, filters; with PCP's own tool where it is installed."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pcp_parquet.archive.meta import InstanceList
from pcp_parquet.conversion.chunks import Chunk
from pcp_parquet.tests.test_archive_writer import (
    COUNTER,
    DISCRETE,
    INSTANT,
    NULL,
    STRING,
    U32,
    U64,
    Metric,
    Writer,
    all_types,
    indom,
    pmid,
    units,
)
from pcp_parquet.tool.command import main
from pcp_parquet.tool.domains import DomainInstances, _instances, traversed
from pcp_parquet.tool.samples import SampleStore
from pcp_parquet.tool.selection import chosen_instances, parse_instances, parse_spec

SECOND = 10**9
DISKS = indom(60, 1)
NAMES = {0: "sda", 1: "sdb", 2: "sdc"}
READ, FREE, STATE, UPTIME = (pmid(60, 0, item) for item in range(4))


def machine(folder: Path, steps: int = 5) -> Path:
    """Three disks that read 1, 2 and 3 KB/s, a level, a text and a counter of milliseconds; a record every 2 s."""
    writer = Writer(folder)
    writer.metric(
        Metric(READ, ("disk.dev.read",), U64, DISKS, COUNTER, units(1, 0, 0, (1, 0, 0)))
    )
    writer.metric(
        Metric(FREE, ("mem.free",), U32, NULL, INSTANT, units(1, 0, 0, (1, 0, 0)))
    )
    writer.metric(Metric(STATE, ("disk.dev.state",), STRING, DISKS, DISCRETE))
    writer.metric(
        Metric(UPTIME, ("kernel.busy",), U32, NULL, COUNTER, units(0, 1, 0, (0, 2, 0)))
    )
    writer.domain(writer.start, DISKS, dict(NAMES))
    for step in range(steps):
        values = {
            READ: {number: 2 * step * (number + 1) for number in NAMES},
            FREE: {NULL: 100 * step},
        }
        values |= {STATE: dict.fromkeys(NAMES, f"s{step}"), UPTIME: {NULL: 500 * step}}
        writer.record(writer.start + 2 * step * SECOND, values)
    return writer.close()


def wide(base: Path, *arguments: str) -> pa.Table:
    output = base.parent / f"out{len(list(base.parent.iterdir()))}"
    assert main(["-a", str(base), "--wide", "-o", str(output), *arguments]) == 0
    assert [path.name for path in output.iterdir()] == ["part-0.parquet"]
    return pq.read_table(output / "part-0.parquet")


def columns(table: pa.Table) -> dict[str, list[object]]:
    return {
        name: table[name].to_pylist()
        for name in table.column_names
        if name != "timestamp"
    }


def test_names_order_and_types_are_those_of_pcp2arrow(tmp_path: Path) -> None:
    base = machine(tmp_path)
    reads, states = (
        [f"disk.dev.{what}[{name}]" for name in NAMES.values()]
        for what in ("read", "state")
    )
    # libpcp walks its name space from the youngest branch.
    order = ["timestamp", "kernel.busy", "mem.free", *states, *reads]
    rated, raw = wide(base, "-t", "2"), wide(base, "-r")
    assert rated.column_names == raw.column_names == order
    assert [str(field.type) for field in rated.schema] == (
        ["timestamp[ns]", "double", "uint32", *["string"] * 3, *["double"] * 3]
    )
    assert [str(raw.schema.field(name).type) for name in ("kernel.busy", reads[0])] == [
        "uint32",
        "uint64",
    ]


def test_rates_and_samples(tmp_path: Path) -> None:
    table = wide(machine(tmp_path), "-t", "3s", "-Z", "UTC")
    found = columns(table)
    assert found["disk.dev.read[sdb]"] == [None, 2.0, 2.0]
    assert found["kernel.busy"] == [None, pytest.approx(250.0), pytest.approx(250.0)]
    assert found["mem.free"] == [0, 100, 300]
    assert found["disk.dev.state[sda]"] == ["s0", "s1", "s3"]
    stamps = table["timestamp"].cast(pa.int64()).to_pylist()
    assert stamps == [1_700_000_000 * SECOND + 3 * SECOND * step for step in range(3)]
    assert json.loads(table.schema.metadata[b"kveval.pcp.wide"])["timezone"] == "UTC"


def test_counters_as_they_are(tmp_path: Path) -> None:
    base = machine(tmp_path)
    assert columns(wide(base, "-R", "-t", "3"))["disk.dev.read[sdc]"] == [
        0.0,
        9.0,
        18.0,
    ]
    assert columns(wide(base, "-r"))["disk.dev.read[sdc]"] == [0, 6, 12, 18, 24]


def test_a_zone_moves_the_clock_on_the_wall_but_not_records(tmp_path: Path) -> None:
    base, zone = machine(tmp_path), time.tzname
    moved = (
        wide(base, "-t", "3", "-Z", "EST5EDT")["timestamp"].cast(pa.int64()).to_pylist()
    )
    assert moved[0] == (1_700_000_000 - 5 * 3600) * SECOND
    assert (
        wide(base, "-r", "-Z", "EST5EDT")["timestamp"].cast(pa.int64()).to_pylist()[0]
        == 1_700_000_000 * SECOND
    )
    assert time.tzname == zone


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["-s", "2"], [0, 2]),
        (["-S", "2s", "-T", "-2s"], [2, 4, 6]),
        (["-S", "1s", "-T", "6s"], [1, 3, 5, 7]),
        (["-O", "4s"], [4, 6, 8]),
        (["-S", "1s", "-A", "4s"], [4, 6, 8]),
        (["-T", "8s", "-s", "3"], [0, 4, 8]),
        (["-T", "8s", "-s", "5", "-r"], [0, 2, 4, 6, 8]),
        (["-S", "3s", "-r"], [4, 6, 8]),
    ],
)
def test_rows(tmp_path: Path, arguments: list[str], rows: list[int]) -> None:
    table = wide(machine(tmp_path), "-t", "2s", "-Z", "UTC", *arguments)
    stamps = table["timestamp"].cast(pa.int64()).to_pylist()
    assert [(stamp - 1_700_000_000 * SECOND) / SECOND for stamp in stamps] == rows


def test_metrics_instances_and_units(tmp_path: Path) -> None:
    base = machine(tmp_path)
    assert list(columns(wide(base, "-r", "mem", "disk.dev.read"))) == [
        "mem.free",
        *READS,
    ]
    assert list(columns(wide(base, "-r", "-i", "sd[ab]", "-v", "*.read"))) == READS[:2]
    scaled = wide(base, "-t", "2", "-b", "bytes", "disk.dev.read,,sdc", "mem.free,,,MB")
    assert scaled["disk.dev.read[sdc]"].to_pylist()[1:] == [3072.0] * 4
    assert scaled["mem.free"].to_pylist()[1] == 100 / 1024
    assert columns(wide(base, "-t", "2", "kernel.busy,,,s / s"))["kernel.busy"][
        1
    ] == pytest.approx(0.25)


READS = [f"disk.dev.read[{name}]" for name in NAMES.values()]


def test_limits_and_ranks(tmp_path: Path) -> None:
    base = machine(tmp_path)
    last = [
        table[-1]
        for table in columns(wide(base, "-r", "-8", "16", "disk.dev.read")).values()
    ]
    assert last == [None, 16, 24]
    assert [
        cells[-1]
        for cells in columns(wide(base, "-r", "-9", "-16", "disk.dev.read")).values()
    ] == [8, 16, None]
    assert [
        cells[-1]
        for cells in columns(wide(base, "-r", "-J", "1", "disk.dev.read")).values()
    ] == [None, None, 24]
    assert [
        cells[-1]
        for cells in columns(wide(base, "-r", "-J", "-2", "disk.dev.read")).values()
    ] == [8, 16, None]
    chosen = columns(wide(base, "-r", "-J", "1", "-i", "sda,sdb", "disk.dev.read"))
    assert [cells[-1] for cells in chosen.values()] == [None, 16]
    ranked = columns(
        wide(base, "-r", "-J", "1", "-n", "-j", "-i", "sda,sdb", "disk.dev.read")
    )
    assert [cells[-1] for cells in ranked.values()] == [None, None]


def test_an_interruption_silences_counters_once_and_holds_discrete_values(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(READ, ("a.count",), U32, NULL, COUNTER))
    writer.metric(Metric(STATE, ("a.state",), STRING, NULL, DISCRETE))
    for second in range(9):
        values = (
            {} if second == 4 else {READ: {NULL: second}, STATE: {NULL: f"s{second}"}}
        )
        writer.record(writer.start + second * SECOND, values)
    found = columns(wide(writer.close(), "-t", "1"))
    assert found["a.count"] == [None, 1.0, 1.0, 1.0, None, None, 1.0, 1.0, 1.0]
    assert found["a.state"] == ["s0", "s1", "s2", "s3", "s3", "s5", "s6", "s7", "s8"]


def test_batches_and_temporary_files_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = all_types(tmp_path, 3).close()
    whole = [wide(base, *mode) for mode in (["-r"], ["-t", "0.7"])]
    monkeypatch.setattr("pcp_parquet.tool.sheet.CELLS", 7)
    monkeypatch.setattr("pcp_parquet.tool.sheet.Sheet.__init__.__defaults__", (7,))
    monkeypatch.setattr("pcp_parquet.conversion.chunks.CHUNK_ROWS", 10)
    assert [wide(base, *mode) for mode in (["-r"], ["-t", "0.7"])] == whole
    file = pq.ParquetFile(max(tmp_path.glob("out*")) / "part-0.parquet")
    assert file.num_row_groups > 1
    # Integers beyond 2^53 are exact.
    assert whole[0]["one.u64"].to_pylist() == [2**64 - 1 - step for step in range(5)]
    assert whole[0]["one.i64"].to_pylist() == [-(2**62) - step for step in range(5)]


def test_two_records_of_one_time_are_two_rows(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(FREE, ("a.level",), U32))
    for value in (1, 2, 3):
        writer.record(writer.start + SECOND * (value > 2), {FREE: {NULL: value}})
    assert columns(wide(writer.close(), "-r"))["a.level"] == [1, 2, 3]


def test_values_stand_in_the_row_of_their_own_record(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for number, name in ((FREE, "a.level"), (UPTIME, "a.other")):
        writer.metric(Metric(number, (name,), U32))
    both = {FREE: {NULL: 3}, UPTIME: {NULL: 4}}
    for second, values in (
        (0, {FREE: {NULL: 1}}),
        (0, {UPTIME: {NULL: 2}}),
        (1, both),
        (1, {FREE: {NULL: 5}}),
        (2, both),
    ):
        writer.record(writer.start + SECOND * second, values)
    levels, others = [1, None, 3, 5, 3], [None, 2, 4, None, 4]
    base = writer.close()
    whole, part = wide(base, "-r"), wide(base, "-r", "-T", "1s")
    assert columns(whole) == {"a.level": levels, "a.other": others}
    seconds = [
        (stamp - writer.start) / SECOND
        for stamp in whole["timestamp"].cast(pa.int64()).to_pylist()
    ]
    assert seconds == [0, 0, 1, 1, 2]
    assert columns(part) == {"a.level": levels[:4], "a.other": others[:4]}


def test_the_order_of_names() -> None:
    assert traversed(["a.x", "a.y", "b", "a.z.q", "a.x"]) == [
        "b",
        "a.z.q",
        "a.y",
        "a.x",
    ]


def test_instances_come_from_the_latest_list_that_has_them() -> None:
    def listed(
        second: int, numbers: list[int], gone: list[bool] | None = None
    ) -> InstanceList:
        flags = None if gone is None else np.array(gone)
        return InstanceList(second, np.array(numbers, dtype=np.int64), flags)

    names = {number: f"n{number}" for number in range(40)}
    lists = [
        listed(1, [3, 1, 2]),
        listed(2, [1, 9], [True, False]),
        listed(3, [2, 5], [True, False]),
    ]
    assert _instances(lists, names) == DomainInstances(
        ["n3", "n5", "n9", "n2", "n1"], {}, {}
    )
    large = _instances(
        [listed(1, list(range(20))), listed(5, [0, 30], [True, False])], names
    )
    assert (large.born_ns["n0"], large.died_ns["n0"]) == (1, 5)
    assert (large.born_ns["n30"], large.died_ns["n30"], large.died_ns["n1"]) == (
        5,
        -1,
        -1,
    )


def test_instance_patterns() -> None:
    names = ["000001 /sbin/init", "000042 sshd:", "000420 (kworker)", "cpu0", "cpu1"]
    assert chosen_instances(names, ["42"]) == ("000042 sshd:",)
    assert chosen_instances(names, ["init", "kworker", "sshd"]) == (
        names[0],
        names[2],
        names[1],
    )
    assert chosen_instances(names, ["cpu[01]"]) == ("cpu0", "cpu1")
    assert chosen_instances(names, ["cpu"]) == ()
    with pytest.raises(ValueError, match=r"-i \(: not a regular expression"):
        chosen_instances(names, ["("])
    assert parse_instances("sda,'sdb', \"a,b\"") == ("sda", "sdb", "a,b")


def test_metric_specifications() -> None:
    spec = parse_spec("disk.dev.read,,'sda,sdb',KB,raw,,,-5")
    assert (spec.pattern, spec.instances, spec.units, spec.raw, spec.limit) == (
        *("disk.dev.read", ("sda", "sdb"), "KB"),
        *(True, -5),
    )
    assert [
        parse_spec("disk.").matches(name) for name in ("disk.a", "disk", "disks.a")
    ] == [True, True, False]
    with pytest.raises(ValueError, match="not a whole number"):
        parse_spec("a,,,,,,,x")


def test_series_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    class Names:
        metrics = [Metric(READ, ("a",), U32)]  # noqa: RUF012

        def name(self, _series: int) -> tuple[int, str]:
            return 0, "same"

    none = np.empty(0, dtype=np.int64)
    chunk = Chunk(
        np.array([1, 2]),
        np.array([1, 1]),
        np.array([5, 5]),
        np.array([1.0, 2.0]),
        (none, none),
        (none, none),
    )
    store = SampleStore(tmp_path)
    store.take(chunk, Names(), "host")
    assert store.names(READ) == ["same", "same #2"]


def test_the_same_as_pcp2arrow(tmp_path: Path) -> None:
    if shutil.which("pcp2arrow") is None:
        pytest.skip("no pcp2arrow on this machine (it comes with PCP 6.2 and later)")
    base = machine(tmp_path)
    for mode in (["-t", "3s"], ["-t", "2s"], ["-R", "-t", "3s"]):
        theirs = tmp_path / "theirs"
        subprocess.run(
            ["pcp2arrow", "-a", base, "-Z", "UTC", *mode, "-o", theirs], check=True
        )
        read = pq.read_table(theirs)
        shutil.rmtree(theirs)
        added = ("event.flags", "event.missed")
        read = read.select([name for name in read.column_names if name not in added])
        assert (
            wide(base, "-Z", "UTC", *mode).replace_schema_metadata()
            == read.replace_schema_metadata()
        )
