"""Labels as libpcp resolves them: by level, through time, by host; and links to archives."""

import struct
from pathlib import Path

import pytest

from pcp_parquet.conversion.conversion import convert, survey
from pcp_parquet.parquet.reading import LongFile, describe, series
from pcp_parquet.tests.test_archive_writer import (
    NULL,
    START,
    U32,
    U64,
    Metric,
    Writer,
    framed,
    indom,
    pmid,
)

SECOND = 10**9
# The domain of openmetrics: with its cluster it takes more than 18 bits.
HIGH = 144
CONTEXT, DOMAIN, OF_INDOM, CLUSTER, ITEM, INSTANCES = (1 << bit for bit in range(6))
VALUE = pmid(HIGH, 3, 7)


def build(
    folder: Path,
    host: str = "testhost",
    version: int = 3,
    start: int = START,
    **options: str,
) -> Writer:
    writer = Writer(folder, host=host, version=version, start=start, **options)
    writer.metric(Metric(VALUE, ("openmetrics.vllm.value",), U32, indom(HIGH, 1)))
    writer.domain(start, indom(HIGH, 1), {0: "a", 1: "b"})
    return writer


def converted(writer: Writer) -> tuple[Path, int]:
    """The Parquet file of an archive, and the number of problems."""
    out = writer.folder / "out.parquet"
    return out, len(convert(writer.close(), out).problems)


@pytest.mark.parametrize("version", [2, 3])
def test_the_most_specific_level_wins_in_a_high_domain(
    tmp_path: Path, version: int
) -> None:
    writer = build(tmp_path, version=version)
    levels = [
        (CONTEXT, NULL),
        (DOMAIN, HIGH),
        (OF_INDOM, indom(HIGH, 1)),
        (CLUSTER, pmid(HIGH, 3, 0)),
        (ITEM, VALUE),
    ]
    # Each level has a label of its own, and one for each of the levels that it overrides or is overridden by.
    for number, (kind, ident) in enumerate(levels):
        names = [f"from{number}", *(f"over{other}" for other in range(number + 1))]
        writer.labels(START, kind, ident, {NULL: dict.fromkeys(names, number)})
    # Labels of another cluster and domain that share the low bits.
    writer.labels(START, CLUSTER, pmid(HIGH - 128, 3, 0), {NULL: {"foreign": 1}})
    writer.labels(START, CLUSTER, HIGH << 12 | 3, {NULL: {"foreign": 2}})
    writer.record(START, {VALUE: {0: 1, 1: 2}})
    parquet, problems = converted(writer)
    expected = {f"from{number}": number for number in range(5)} | {
        f"over{number}": 4 for number in range(5)
    }
    assert describe(parquet)["openmetrics.vllm.value"].labels == expected
    assert problems == 0


def test_without_labels_of_the_context_the_host_is_one(tmp_path: Path) -> None:
    writer = build(tmp_path, host="node7")
    writer.labels(START, CLUSTER, pmid(HIGH, 3, 0), {NULL: {"source": "vllm"}})
    writer.record(START, {VALUE: {0: 1, 1: 2}})
    parquet, _ = converted(writer)
    assert describe(parquet)["openmetrics.vllm.value"].labels == {
        "hostname": "node7",
        "source": "vllm",
    }


def test_a_negative_count_of_labels_is_an_error_code_and_no_damage(
    tmp_path: Path,
) -> None:
    writer = build(tmp_path)
    body = (
        struct.pack(">I", 7)
        + writer.stamp(START)
        + struct.pack(">III", INSTANCES, indom(HIGH, 1), 2)
    )
    body += (
        struct.pack(">IIi", 0, 0, -22)
        + struct.pack(">II", 1, 7)
        + b'{"a":1}'
        + struct.pack(">i", 1)
        + bytes(8)
    )
    writer._meta += framed(body)
    writer.record(START, {VALUE: {0: 1, 1: 2}})
    parquet, problems = converted(writer)
    assert problems == 0
    assert LongFile(parquet).instance_labels(
        describe(parquet)["openmetrics.vllm.value"], "testhost"
    ) == {"b": [(START, {"a": 1})]}


def test_labels_change_with_time_for_metrics_and_instances(tmp_path: Path) -> None:
    writer = build(tmp_path)
    writer.labels(START, CONTEXT, NULL, {NULL: {"rack": 1}})
    writer.labels(
        START, CONTEXT, NULL, {NULL: {"rack": 9}}
    )  # of one time the first counts
    writer.labels(START + 5 * SECOND, CONTEXT, 0, {NULL: {"rack": 2}})
    writer.labels(START, INSTANCES, indom(HIGH, 1), {0: {"gpu": "x"}})
    writer.labels(START + 3 * SECOND, INSTANCES, indom(HIGH, 1), {1: {"gpu": "y"}})
    for step in range(8):
        writer.record(START + step * SECOND, {VALUE: {0: step, 1: 10 + step}})
    parquet, _ = converted(writer)

    def found(**labels: object) -> list[float]:
        return series(parquet, "openmetrics.vllm.value", labels=labels)[
            "value"
        ].tolist()

    info = describe(parquet)["openmetrics.vllm.value"]
    assert info.labels == {"rack": 2}
    assert info.labels_of("testhost") == [
        (START, {"rack": 1}),
        (START + 5 * SECOND, {"rack": 2}),
    ]
    assert found(rack=1) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert found(rack=9) == []
    # A record of labels replaces the one before it: from 3 s on instance a has none.
    assert found(gpu="x") == [0, 1, 2]
    assert found(gpu="y", rack=2) == [15, 16, 17]


def test_an_instance_that_takes_over_a_number_has_its_labels(tmp_path: Path) -> None:
    writer = build(tmp_path)
    writer.labels(START, INSTANCES, indom(HIGH, 1), {0: {"gpu": "x"}})
    writer.domain(START + 2 * SECOND, indom(HIGH, 1), {0: "c"}, delta=True)
    writer.labels(START + 2 * SECOND, INSTANCES, indom(HIGH, 1), {0: {"gpu": "x"}})
    for step in range(4):
        writer.record(START + step * SECOND, {VALUE: {0: step, 1: 10 + step}})
    parquet, _ = converted(writer)
    assert series(parquet, "openmetrics.vllm.value", labels={"gpu": "x"})[
        "instance"
    ].tolist() == ["a", "a", "c", "c"]


def test_instances_without_labels_are_found_by_those_of_the_metric(
    tmp_path: Path,
) -> None:
    writer = build(tmp_path)
    writer.labels(START, CONTEXT, NULL, {NULL: {"rack": 1}})
    writer.labels(START, INSTANCES, indom(HIGH, 1), {1: {"gpu": "y"}})
    writer.record(START, {VALUE: {0: 1, 1: 2}})
    parquet, _ = converted(writer)
    assert series(parquet, "openmetrics.vllm.value", labels={"rack": 1})[
        "value"
    ].tolist() == [1, 2]


def test_each_host_and_each_archive_keeps_its_labels(tmp_path: Path) -> None:
    for number, (host, start) in enumerate([("one", 0), ("two", 0), ("one", 100)]):
        writer = build(tmp_path / str(number), host, start=START + start * SECOND)
        writer.labels(writer.start, CONTEXT, NULL, {NULL: {"run": number}})
        writer.labels(
            writer.start, INSTANCES, indom(HIGH, 1), {0: {"gpu": f"gpu{number}"}}
        )
        writer.record(writer.start, {VALUE: {0: number, 1: 10 + number}})
        writer.close()
    out = tmp_path / "out.parquet"
    convert(tmp_path, out)

    def found(**labels: object) -> list[tuple[str, float]]:
        frame = series(out, "openmetrics.vllm.value", labels=labels)
        return list(zip(frame["host"], frame["value"], strict=True))

    for number, host in enumerate(["one", "two", "one"]):
        assert sorted(found(run=number)) == [(host, number), (host, 10 + number)]
        assert found(gpu=f"gpu{number}") == [(host, number)]


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_links_beside_the_linked_files_are_no_second_archive(
    tmp_path: Path, kind: str
) -> None:
    writer = build(tmp_path / "archives", name="zz")
    writer.record(START, {VALUE: {0: 1, 1: 2}})
    base = writer.close()
    for part in ("meta", "index", "0"):
        link, target = base.with_name(f"latest.{part}"), base.with_name(f"zz.{part}")
        if kind == "symbolic":
            link.symlink_to(target.name)
        else:
            link.hardlink_to(target)
    summary = survey(base.parent)
    assert (summary.rows, summary.problems, len(summary.info.archives)) == (2, [], 1)
    if kind == "symbolic":
        assert summary.info.archives[0]["name"] == "zz"
    assert survey(base.with_name("latest")).rows == 2
    # A copy of the volume of the same logger, and an archive that has a volume more.
    (base.parent / "other.meta").symlink_to("zz.meta")
    (base.parent / "other.0").write_bytes(base.with_name("zz.0").read_bytes())
    writer.volume()
    writer.record(START + SECOND, {VALUE: {0: 3, 1: 4}})
    base.with_name("latest.1").write_bytes(writer._volumes[1])
    summary = survey(base.parent)
    assert (summary.rows, [problem.kind for problem in summary.problems]) == (
        2 + 2,
        ["no index", "copy"],
    )


def test_an_index_out_of_order_is_said_and_is_no_damage(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metric(Metric(pmid(1, 0, 0), ("one",), U64))
    for step in (0, 2, 1):
        writer.record(START + step * SECOND, {pmid(1, 0, 0): {NULL: step}})
    summary = survey(writer.close())
    assert [problem.kind for problem in summary.problems] == [
        "index order",
        "clock step",
    ]
    assert (summary.rows, summary.damaged) == (3, False)
