"""A cell that two nodes served: each has an archive of its own, and a metric is one number all the same."""

from pathlib import Path

import pytest
import yaml
from tests.support.described import vllm
from tests.support.paths import CONFIG

from kveval.pcp.archive_tools import pack_archives
from kveval.pcp.installation import RecordingError
from kveval.tables.levels.recording import convert_recording
from kveval.tables.system.metrics import SystemRecording, parse_metrics
from kveval.tables.system.timelines import timelines
from pcp_parquet.parquet.reading import archive_info
from pcp_parquet.tests.test_archive_writer import (
    COUNTER,
    DOUBLE,
    NULL,
    U64,
    Metric,
    Writer,
    indom,
    pmid,
    units,
)

SECOND = 10**9
START = 1_700_000_000 * SECOND
SECONDS = 40
WINDOW = (START + 2 * SECOND, START + (SECONDS - 3) * SECOND)
METRICS = yaml.load((CONFIG / "metrics.yaml").read_bytes(), Loader=yaml.CSafeLoader)
GIB_IN_KB = 2**20


def archive(folder: Path, node: str, number: int, at: int) -> Path:
    """A node with (number + 1) GiB used, a share of busy time, and two disks; the first has the server's metrics."""
    writer = Writer(folder / node, name="pcp", host=node, start=at)
    disks = indom(60, 1)
    writer.domain(at, disks, {0: "sda", 1: "sdb"})
    used = Metric(
        pmid(60, 0, 1), ("mem.util.used",), U64, units=units(1, 0, 0, (1, 0, 0))
    )
    waited = Metric(
        pmid(60, 0, 2),
        ("kernel.all.pressure.cpu.some.total",),
        U64,
        semantics=COUNTER,
        units=units(0, 1, 0, (0, 1, 0)),
    )
    active = Metric(
        pmid(60, 0, 3),
        ("disk.dev.avactive",),
        U64,
        indom=disks,
        semantics=COUNTER,
        units=units(0, 1, 0, (0, 2, 0)),
    )
    running = Metric(
        pmid(144, 0, 4), ("openmetrics.vllm.vllm.num_requests_running",), DOUBLE
    )
    for metric in [used, waited, active, *([] if number else [running])]:
        writer.metric(metric)
    for step in range(SECONDS):
        values: dict[int, dict[int, object] | int] = {
            used.pmid: {NULL: (number + 1) * GIB_IN_KB},
            waited.pmid: {NULL: step * (800_000 - 400_000 * number)},
            active.pmid: {0: step * (300 + 500 * number), 1: step * 100},
        }
        if not number:
            values[running.pmid] = {NULL: 5.0}
        writer.record(at + step * SECOND, values)
    return writer.close()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    # Of their names PCP makes what it likes: `gpu.1` is a volume to it.
    bases = [
        archive(folder / "pcp", node, n, START + 300_000_000 * n)
        for n, node in enumerate(("gpu.0", "gpu.1"))
    ]
    (folder / "raw").mkdir()
    (folder / "run.json").write_text("{}")
    pack_archives(bases, folder / "raw" / "pcp.tar.zst")
    convert_recording(folder, folder / "pcp.parquet")
    return folder / "pcp.parquet"


def test_the_archives_of_all_nodes_are_packed_and_converted_as_one_recording(
    recording: Path,
) -> None:
    info = archive_info(recording)
    assert info.hosts == ["gpu.0", "gpu.1"]
    assert [one["name"] for one in info.archives] == ["gpu.0/pcp", "gpu.1/pcp"]
    assert info.marks_ns == [] and info.problems == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memory_used_gib", 3.0),  # the sum
        ("cpu_pressure_percent", 60.0),  # the mean of 80 and 40
        ("disk_busy_percent", 80.0),  # the busiest disk of all
        ("requests_running", 5.0),  # of the server, recorded once
    ],
)
def test_metrics_of_several_nodes_become_one_number_and_one_line(
    recording: Path, name: str, expected: float
) -> None:
    metrics = parse_metrics({name: METRICS[name]})
    reduced = SystemRecording(recording, metrics, vllm("0.32.0")).reduce(WINDOW)
    assert reduced.values[name] == pytest.approx(expected)
    lines = timelines(recording, {name: METRICS[name]}, vllm("0.32.0"), *WINDOW)
    line = lines[name]
    assert len(line) >= SECONDS - 7
    assert line.to_numpy() == pytest.approx(expected)


def test_a_node_without_an_archive_is_not_packed(tmp_path: Path) -> None:
    base = archive(tmp_path, "gpu-0", 0, START)
    with pytest.raises(RecordingError) as error:
        pack_archives([base, tmp_path / "gpu-1" / "pcp"], tmp_path / "pcp.tar.zst")
    assert error.value.code == "no_archive"
    assert not (tmp_path / "pcp.tar.zst").exists()
