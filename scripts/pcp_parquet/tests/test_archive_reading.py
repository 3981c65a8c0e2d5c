"""Reading back: series, rates, increases, the wide table."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp_parquet.conversion.conversion import convert
from pcp_parquet.conversion.footer import MetricInfo
from pcp_parquet.parquet.rates import PreparedCounter, increase, rate, rates_of
from pcp_parquet.parquet.reading import (
    Samples,
    archive_info,
    describe,
    samples_of,
    series,
)
from pcp_parquet.tests.test_archive_writer import (
    COUNTER,
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

SECOND = 10**9
START = 1_700_000_000 * SECOND
OPS, LOAD, NAME = pmid(60, 0, 1), pmid(60, 0, 2), pmid(60, 0, 3)
DISKS = indom(60, 1)


def at(second: float) -> int:
    return START + round(second * SECOND)


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """Two disks counting 10 and 20 a second, a singular gauge and a text; sdb's number is given to nvme at 6 s."""
    writer = Writer(tmp_path, start=START)
    writer.metric(
        Metric(OPS, ("disk.ops", "old.ops"), U32, DISKS, COUNTER, units(0, 0, 1)),
        "operations",
    )
    writer.metric(Metric(LOAD, ("load",), U64))
    writer.metric(Metric(NAME, ("name",), STRING))
    writer.domain(START, DISKS, {0: "sda", 1: "sdb"})
    writer.labels(START, 1, NULL, {NULL: {"host": "testhost", "rack": 7}})
    writer.labels(START, 32, DISKS, {0: {"bus": "sata"}, 1: {"bus": "sata"}})
    for step in range(10):
        if step == 6:
            writer.domain(at(6), DISKS, {1: "nvme"}, delta=True)
            writer.labels(at(6), 32, DISKS, {0: {"bus": "usb"}, 1: {"bus": "pci"}})
        ops = {0: 10 * step, 1: 20 * step}
        writer.record(
            at(step),
            {OPS: ops, LOAD: {NULL: 2**63 + step}, NAME: {NULL: f"n{step % 2}"}},
        )
    convert(writer.close(), tmp_path / "out.parquet")
    return tmp_path / "out.parquet"


def test_describe(parquet: Path) -> None:
    info = describe(parquet)["disk.ops"]
    assert (info.type, info.semantics, info.units, info.pmid, info.indom) == (
        "U32",
        "counter",
        "count",
        "60.0.1",
        "60.1",
    )
    assert (info.names, info.help, info.samples) == (
        ("disk.ops", "old.ops"),
        "operations",
        20,
    )
    assert info.labels == {"host": "testhost", "rack": 7}
    assert list(describe(parquet)) == ["disk.ops", "load", "name"]


def test_archive_info(parquet: Path) -> None:
    info = archive_info(parquet)
    assert (info.host, info.timezone, info.start_ns, info.end_ns, info.rows) == (
        "testhost",
        "UTC",
        at(0),
        at(9),
        40,
    )
    assert (info.marks_ns, info.problems) == ([], [])


def test_series_by_instance_and_window(parquet: Path) -> None:
    frame = series(parquet, "disk.ops", instance="sda", start_ns=at(2), finish_ns=at(4))
    assert frame["value"].tolist() == [20, 30, 40]
    assert frame["timestamp"].tolist() == [
        pd.Timestamp(at(second), tz="UTC") for second in (2, 3, 4)
    ]
    assert frame.attrs == {
        "metric": "disk.ops",
        "units": "count",
        "semantics": "counter",
        "type": "U32",
        "marks_ns": [],
    }


def test_a_reused_number_keeps_both_names(parquet: Path) -> None:
    frame = series(parquet, "old.ops")
    sizes = frame.groupby("instance", observed=True).size()
    assert sizes.to_dict() == {"sda": 10, "sdb": 6, "nvme": 4}
    assert frame["instance"].is_monotonic_increasing or frame[
        "instance"
    ].tolist() == sorted(frame["instance"])


def test_labels_at_their_time(parquet: Path) -> None:
    found = series(parquet, "disk.ops", labels={"bus": "sata"})
    assert found.groupby("instance", observed=True).size().to_dict() == {
        "sda": 6,
        "sdb": 6,
    }
    assert series(parquet, "disk.ops", labels={"bus": "usb"})["value"].tolist() == [
        60,
        70,
        80,
        90,
    ]
    assert set(
        series(parquet, "disk.ops", labels={"bus": "pci", "rack": "7"})["instance"]
    ) == {"nvme"}
    assert len(series(parquet, "disk.ops", labels={"bus": "none"})) == 0
    assert len(series(parquet, "load", labels={"rack": 7})) == 10
    assert len(series(parquet, "load", labels={"rack": 8})) == 0


def test_exact_integers_and_texts(parquet: Path) -> None:
    frame = series(parquet, "load")
    assert frame["value_int"].tolist() == [2**63 + step for step in range(10)]
    assert frame["value_int"].dtype == "UInt64"
    assert frame["instance"].isna().all()
    assert series(parquet, "name")["value"].tolist() == ["n0", "n1"] * 5
    assert "value_int" not in series(parquet, "disk.ops")


def test_what_is_not_there(parquet: Path, tmp_path: Path) -> None:
    assert len(series(parquet, "disk.ops", instance=["nothing"])) == 0
    assert len(series(parquet, "disk.ops", start_ns=at(100))) == 0
    with pytest.raises(KeyError, match=r"no metric 'disk\.nothing'"):
        series(parquet, "disk.nothing")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "foreign.parquet")
    (tmp_path / "text.parquet").write_text("no Parquet")
    for name in ("foreign.parquet", "text.parquet", "missing.parquet"):
        with pytest.raises(ValueError, match=name):
            series(tmp_path / name, "disk.ops")


def test_rate_and_increase(parquet: Path) -> None:
    rates = rate(series(parquet, "disk.ops"))
    assert rates.groupby("instance", observed=True)["value"].unique().map(
        list
    ).to_dict() == {
        "nvme": [20],
        "sda": [10],
        "sdb": [20],
    }
    assert rates.attrs["units"] == "count / sec"
    gained = increase(
        series(parquet, "disk.ops", start_ns=at(1), finish_ns=at(5), instance="sda")
    )
    assert gained.to_dict("records") == [
        {
            "instance": "sda",
            "increase": 40,
            "seconds": 4,
            "rate": 10,
            "samples": 5,
            "resets": 0,
            "marks": 0,
        }
    ]
    with pytest.raises(ValueError, match="instant"):
        rate(series(parquet, "load"))


def counter(
    values: list[int],
    times: list[float],
    kind: str = "U64",
    marks: tuple[float, ...] = (),
) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "timestamp": pd.to_datetime([at(second) for second in times], utc=True),
            "instance": None,
            "value": np.array(values, dtype=float),
        }
    )
    frame.attrs = {
        "semantics": "counter",
        "type": kind,
        "marks_ns": [at(second) for second in marks],
    }
    return frame


def test_a_reset_gives_no_rate_and_counts_from_zero() -> None:
    frame = counter([100, 110, 5, 15], [0, 1, 2, 3])
    assert rate(frame)["value"].fillna(-1).tolist() == [10, -1, 10]
    assert increase(frame)[["increase", "seconds", "resets"]].to_numpy().tolist() == [
        [25, 3, 1]
    ]


def test_a_mark_gives_no_rate_and_does_not_count() -> None:
    frame = counter([100, 110, 500, 510], [0, 1, 5, 6], marks=(2.5,))
    assert rate(frame)["value"].fillna(-1).tolist() == [10, -1, 10]
    gained = increase(frame)[["increase", "seconds", "rate", "marks"]]
    assert gained.to_numpy().tolist() == [[20, 2, 10, 1]]


def test_a_32_bit_wrap_is_no_reset() -> None:
    values = [2**32 - 15, 2**32 - 5, 5]
    assert rate(counter(values, [0, 1, 2], "U32"))["value"].tolist() == [10, 10]
    assert increase(counter(values, [0, 1, 2], "U32"))["increase"].tolist() == [20]
    assert rate(counter(values, [0, 1, 2], "U64"))["value"].isna().tolist() == [
        False,
        True,
    ]
    # A fall by less than half the range is a reset, not a wrap.
    assert increase(counter([1000, 10], [0, 1], "U32"))["resets"].tolist() == [1]


def test_one_sample_has_no_rate() -> None:
    gained = increase(counter([7], [0]))
    assert gained[["increase", "seconds", "samples"]].to_numpy().tolist() == [[0, 0, 1]]
    assert gained["rate"].isna().all()
    assert len(rate(counter([7], [0]))) == 0


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20),
    st.sampled_from(["U32", "U64"]),
    st.lists(st.integers(0, 19), max_size=3),
)
def test_rates_of_arrays_are_those_of_frames(
    values: list[int], kind: str, marks: list[int]
) -> None:
    times = [float(second) for second in range(len(values))]
    frame = counter(values, times, kind, tuple(mark + 0.5 for mark in marks))
    info = MetricInfo(
        name="disk.ops",
        names=("disk.ops",),
        pmid="60.0.1",
        type=kind,
        semantics="counter",
        units="count",
        indom=None,
        help="",
        labels={},
        samples=len(values),
    )
    samples = Samples(
        info,
        np.array([at(second) for second in times]),
        np.zeros(len(values), dtype=np.int64),
        [("", "")],
        np.array(values, dtype=float),
    )
    of_arrays = rates_of(samples, frame.attrs["marks_ns"])
    of_frame = rate(frame)
    assert of_arrays.values.tolist() == pytest.approx(
        of_frame["value"].tolist(), nan_ok=True
    )
    seconds = pd.DatetimeIndex(of_frame["timestamp"]).as_unit("ns").asi8
    assert of_arrays.times.tolist() == seconds.tolist()


def test_instances_have_rates_of_their_own_and_gauges_none(parquet: Path) -> None:
    samples, archive = samples_of(parquet, ["disk.ops", "load"])
    rates = rates_of(samples["disk.ops"], archive.marks_ns)
    by_instance = {
        name: set(rates.values[rates.series == number])
        for number, (_, name) in enumerate(rates.names)
    }
    assert by_instance == {"nvme": {20}, "sda": {10}, "sdb": {20}}
    with pytest.raises(ValueError, match="instant"):
        rates_of(samples["load"], [])


def test_differences_of_large_counters_are_exact() -> None:
    frame = counter([2.0**60, 2.0**60], [0, 1])
    frame["value_int"] = pd.Series([2**60, 2**60 + 7], dtype=object)
    assert rate(frame)["value"].tolist() == [7]


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=30),
    st.integers(0, 2**32 - 1),
)
def test_the_increase_of_a_wrapping_counter_is_the_sum_of_its_steps(
    steps: list[int], first: int
) -> None:
    total = np.cumsum([first, *steps])
    times = list(range(len(total)))
    wrapped = increase(counter((total % 2**32).tolist(), times, "U32"))
    assert wrapped["increase"].tolist() == [sum(steps)]
    whole = increase(counter(total.tolist(), times))
    assert whole["rate"].iloc[0] == pytest.approx(sum(steps) / (len(total) - 1))


SAMPLES = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from("ab"), st.integers(0, 2**32 - 1)),
    max_size=40,
)


@given(
    SAMPLES,
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.sets(st.integers(0, 20)),
    st.sampled_from(["U32", "U64"]),
)
def test_a_prepared_counter_gains_what_increase_says_of_the_samples_in_a_window(
    samples, window, marks, kind
) -> None:
    ordered = sorted(samples, key=lambda sample: (sample[1], sample[0]))
    times, names, values = (
        (list(column) for column in zip(*ordered, strict=True))
        if ordered
        else ([], [], [])
    )
    frame = counter(values, times, kind, tuple(mark + 0.5 for mark in marks)).assign(
        instance=pd.Categorical(names)
    )
    frame.attrs = counter(
        values, times, kind, tuple(mark + 0.5 for mark in marks)
    ).attrs
    begin, finish = (at(second) for second in window)
    inside = frame[
        frame["timestamp"].between(
            *(pd.Timestamp(edge, tz="UTC") for edge in (begin, finish))
        )
    ]
    inside.attrs = frame.attrs
    moments = sorted(inside["timestamp"].unique())
    found = PreparedCounter(frame).gained(begin, finish)
    if len(moments) < 2:
        assert found is None
        return
    assert found is not None
    assert found.first == inside.drop_duplicates("instance")["value"].sum()
    assert found.increase == increase(inside)["increase"].sum()
    assert (
        found.interval_s
        == np.median(np.diff([moment.value for moment in moments])) / 1e9
    )


def test_a_prepared_counter_keeps_hosts_apart_and_leaves_out_what_is_missing() -> None:
    frame = counter([100, 110, 900, 950], [0, 1, 0, 1]).assign(
        host=["one", "one", "two", "two"]
    )
    frame.attrs = counter([1], [0]).attrs
    found = PreparedCounter(frame).gained(at(0), at(1))
    assert found is not None
    assert (found.first, found.increase) == (1000, 60)
    frame.loc[3, "value"] = np.nan
    found = PreparedCounter(frame).gained(at(0), at(1))
    assert found is not None
    assert (found.first, found.increase) == (1000, 10)


def test_two_hosts_are_kept_apart(tmp_path: Path) -> None:
    for host in ("one", "two"):
        writer = all_types(tmp_path / "hosts" / host, 3)
        writer.host = host
        writer._meta[: len(writer._label(-1))] = writer._label(-1)
        for volume in writer._volumes:
            volume[: len(writer._label(0))] = writer._label(0)
        writer.close()
    out = tmp_path / "out.parquet"
    summary = convert(tmp_path / "hosts", out)
    assert summary.info.hosts == ["one", "two"]
    both = series(out, "one.u32")
    assert both["host"].tolist() == ["one"] * 5 + ["two"] * 5
    assert (
        series(out, "one.u32", host="two")["value"].tolist()
        == both["value"].tolist()[5:]
    )
    assert len(rate(series(out, "disk.u32"))) == 2 * 3 * 4
