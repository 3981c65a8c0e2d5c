"""Time windows in PCP's syntax, against answers of libpcp 7.2.1 (pmParseInterval(3), pmParseTimeWindow(3))."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp_parquet.tool.intervals import (
    nanoseconds,
    parse_interval,
    parse_moment,
    time_window,
)

# An archive from Mon Mar  4 14:07:47.123456789 1996 UTC, of three and a half days.
START = 825_944_867_123_456_789
SPAN = (START, START + 302_400 * 10**9)
INTERVALS = {
    "5": 5_000_000_000,
    "5min": 300_000_000_000,
    "1h30m": 5_400_000_000_000,
    "4 days 6 hours 30 minutes": 369_000_000_000_000,
    "4d6.5h": 369_000_000_000_000,
    "1hour 15mins 30secs": 4_530_000_000_000,
    "0.25": 250_000_000,
    "250msec": 250_000_000,
    "10 usec": 10_000,
    "3 nsec": 3,
    "2hrs": 7_200_000_000_000,
    "2000000.1234567": 2_000_000_123_457_000,
    "7S": 7_000_000_000,
    "5.": 5_000_000_000,
    "1e3": 1_000_000_000_000,
}
# Zone; -S, -T, -O, -A; start, finish and origin in ns after the start of the archive.
WINDOWS = [
    (
        "UTC",
        "@10:00",
        None,
        None,
        None,
        (75132876543211, 302400000000000, 75132876543211),
    ),
    ("UTC", "@13:10", None, None, None, (132876543211, 302400000000000, 132876543211)),
    ("UTC", "@13:08", None, None, None, (12876543211, 302400000000000, 12876543211)),
    (
        "UTC",
        "@Mar 5",
        None,
        None,
        None,
        (39132876543211, 302400000000000, 39132876543211),
    ),
    (
        "UTC",
        "@Tue Mar 5",
        None,
        None,
        None,
        (39132876543211, 302400000000000, 39132876543211),
    ),
    (
        "UTC",
        "@Mon Mar  4 20:07:47 1996",
        None,
        None,
        None,
        (25199876543211, 302400000000000, 25199876543211),
    ),
    (
        "UTC",
        "@Mar 5 1996",
        None,
        None,
        None,
        (39132876543211, 302400000000000, 39132876543211),
    ),
    (
        "UTC",
        "@5 March 1996",
        None,
        None,
        None,
        (39132876543211, 302400000000000, 39132876543211),
    ),
    (
        "UTC",
        "@3/6/96",
        None,
        None,
        None,
        (125532876543211, 302400000000000, 125532876543211),
    ),
    (
        "UTC",
        "@1996-03-06 12:00",
        None,
        None,
        None,
        (168732876543211, 302400000000000, 168732876543211),
    ),
    (
        "UTC",
        "@6 Mar 1996 10:30 pm",
        None,
        None,
        None,
        (206532876543211, 302400000000000, 206532876543211),
    ),
    (
        "UTC",
        "@Mar 6 11:30:15.5",
        None,
        None,
        None,
        (166948376543211, 302400000000000, 166948376543211),
    ),
    (
        "UTC",
        "@Mar 5 10:00:00 UTC 1996",
        None,
        None,
        None,
        (75132876543211, 302400000000000, 75132876543211),
    ),
    (
        "Europe/Berlin",
        "@10:00",
        None,
        None,
        None,
        (71532876543211, 302400000000000, 71532876543211),
    ),
    (
        "Europe/Berlin",
        "@13:10",
        None,
        None,
        None,
        (82932876543211, 302400000000000, 82932876543211),
    ),
    (
        "Europe/Berlin",
        "@13:08",
        None,
        None,
        None,
        (82812876543211, 302400000000000, 82812876543211),
    ),
    (
        "Europe/Berlin",
        "@Mar 5",
        None,
        None,
        None,
        (35532876543211, 302400000000000, 35532876543211),
    ),
    (
        "Europe/Berlin",
        "@Tue Mar 5",
        None,
        None,
        None,
        (35532876543211, 302400000000000, 35532876543211),
    ),
    (
        "Europe/Berlin",
        "@Mon Mar  4 20:07:47 1996",
        None,
        None,
        None,
        (21599876543211, 302400000000000, 21599876543211),
    ),
    (
        "Europe/Berlin",
        "@Mar 5 1996",
        None,
        None,
        None,
        (35532876543211, 302400000000000, 35532876543211),
    ),
    (
        "Europe/Berlin",
        "@5 March 1996",
        None,
        None,
        None,
        (35532876543211, 302400000000000, 35532876543211),
    ),
    (
        "Europe/Berlin",
        "@3/6/96",
        None,
        None,
        None,
        (121932876543211, 302400000000000, 121932876543211),
    ),
    (
        "Europe/Berlin",
        "@1996-03-06 12:00",
        None,
        None,
        None,
        (165132876543211, 302400000000000, 165132876543211),
    ),
    (
        "Europe/Berlin",
        "@6 Mar 1996 10:30 pm",
        None,
        None,
        None,
        (202932876543211, 302400000000000, 202932876543211),
    ),
    (
        "Europe/Berlin",
        "@Mar 6 11:30:15.5",
        None,
        None,
        None,
        (163348376543211, 302400000000000, 163348376543211),
    ),
    (
        "Europe/Berlin",
        "@Mar 5 10:00:00 UTC 1996",
        None,
        None,
        None,
        (75132876543211, 302400000000000, 75132876543211),
    ),
    (
        "EST5EDT",
        "@10:00",
        None,
        None,
        None,
        (6732876543211, 302400000000000, 6732876543211),
    ),
    (
        "EST5EDT",
        "@13:10",
        None,
        None,
        None,
        (18132876543211, 302400000000000, 18132876543211),
    ),
    (
        "EST5EDT",
        "@13:08",
        None,
        None,
        None,
        (18012876543211, 302400000000000, 18012876543211),
    ),
    (
        "EST5EDT",
        "@Mar 5",
        None,
        None,
        None,
        (57132876543211, 302400000000000, 57132876543211),
    ),
    (
        "EST5EDT",
        "@Tue Mar 5",
        None,
        None,
        None,
        (57132876543211, 302400000000000, 57132876543211),
    ),
    (
        "EST5EDT",
        "@Mon Mar  4 20:07:47 1996",
        None,
        None,
        None,
        (43199876543211, 302400000000000, 43199876543211),
    ),
    (
        "EST5EDT",
        "@Mar 5 1996",
        None,
        None,
        None,
        (57132876543211, 302400000000000, 57132876543211),
    ),
    (
        "EST5EDT",
        "@5 March 1996",
        None,
        None,
        None,
        (57132876543211, 302400000000000, 57132876543211),
    ),
    (
        "EST5EDT",
        "@3/6/96",
        None,
        None,
        None,
        (143532876543211, 302400000000000, 143532876543211),
    ),
    (
        "EST5EDT",
        "@1996-03-06 12:00",
        None,
        None,
        None,
        (186732876543211, 302400000000000, 186732876543211),
    ),
    (
        "EST5EDT",
        "@6 Mar 1996 10:30 pm",
        None,
        None,
        None,
        (224532876543211, 302400000000000, 224532876543211),
    ),
    (
        "EST5EDT",
        "@Mar 6 11:30:15.5",
        None,
        None,
        None,
        (184948376543211, 302400000000000, 184948376543211),
    ),
    (
        "EST5EDT",
        "@Mar 5 10:00:00 UTC 1996",
        None,
        None,
        None,
        (75132876543211, 302400000000000, 75132876543211),
    ),
    ("UTC", "30min", None, None, None, (1800000000000, 302400000000000, 1800000000000)),
    (
        "UTC",
        "-1hour",
        None,
        None,
        None,
        (298800000000000, 302400000000000, 298800000000000),
    ),
    ("UTC", "0", None, None, None, (0, 302400000000000, 0)),
    (
        "UTC",
        "-0",
        None,
        None,
        None,
        (302400000000000, 302400000000000, 302400000000000),
    ),
    ("UTC", "1.5h", None, None, None, (5400000000000, 302400000000000, 5400000000000)),
    ("UTC", "+2h", None, None, None, (7200000000000, 302400000000000, 7200000000000)),
    (
        "UTC",
        "1h30m15s",
        None,
        None,
        None,
        (5415000000000, 302400000000000, 5415000000000),
    ),
    ("UTC", "1h", "2h", None, None, (3600000000000, 10800000000000, 3600000000000)),
    (
        "UTC",
        "@20:00",
        "-1h",
        None,
        None,
        (24732876543211, 298800000000000, 24732876543211),
    ),
    (
        "UTC",
        "-1d",
        "5min",
        None,
        None,
        (216000000000000, 216300000000000, 216000000000000),
    ),
    ("UTC", None, "@Mar 6", None, None, (0, 125532876543211, 0)),
    ("UTC", None, "-90m", None, None, (0, 297000000000000, 0)),
    (
        "UTC",
        "100min",
        "100d",
        None,
        None,
        (6000000000000, 302400000000000, 6000000000000),
    ),
    ("UTC", None, None, None, "1sec", (876543211, 302400000000000, 876543211)),
    (
        "UTC",
        "10min",
        None,
        "1h",
        "1sec",
        (600876543211, 302400000000000, 4200876543211),
    ),
    (
        "UTC",
        "@14:00",
        None,
        "-0",
        "1sec",
        (3132876543211, 302400000000000, 302399876543211),
    ),
    ("UTC", None, None, "@20:00", "1sec", (876543211, 302400000000000, 24732876543211)),
    ("UTC", None, None, None, "30min", (1332876543211, 302400000000000, 1332876543211)),
    (
        "UTC",
        "10min",
        None,
        "1h",
        "30min",
        (1332876543211, 302400000000000, 4932876543211),
    ),
    (
        "UTC",
        "@14:00",
        None,
        "-0",
        "30min",
        (3132876543211, 302400000000000, 301932876543211),
    ),
    (
        "UTC",
        None,
        None,
        "@20:00",
        "30min",
        (1332876543211, 302400000000000, 24732876543211),
    ),
    ("UTC", None, None, None, "7s", (876543211, 302400000000000, 876543211)),
    ("UTC", "10min", None, "1h", "7s", (602876543211, 302400000000000, 4207876543211)),
    (
        "UTC",
        "@14:00",
        None,
        "-0",
        "7s",
        (3136876543211, 302400000000000, 302393876543211),
    ),
    ("UTC", None, None, "@20:00", "7s", (876543211, 302400000000000, 24738876543211)),
    ("UTC", None, None, None, "2d", (39132876543211, 302400000000000, 39132876543211)),
    (
        "UTC",
        "10min",
        None,
        "1h",
        "2d",
        (39132876543211, 302400000000000, 211932876543211),
    ),
    (
        "UTC",
        "@14:00",
        None,
        "-0",
        "2d",
        (39132876543211, 302400000000000, 211932876543211),
    ),
    (
        "UTC",
        None,
        None,
        "@20:00",
        "2d",
        (39132876543211, 302400000000000, 211932876543211),
    ),
    ("UTC", None, None, None, "100d", (0, 302400000000000, 0)),
    (
        "UTC",
        "10min",
        None,
        "1h",
        "100d",
        (600000000000, 302400000000000, 4200000000000),
    ),
    (
        "UTC",
        "@14:00",
        None,
        "-0",
        "100d",
        (3132876543211, 302400000000000, 302400000000000),
    ),
    ("UTC", None, None, "@20:00", "100d", (0, 302400000000000, 24732876543211)),
]


@pytest.fixture
def zone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("text", "expected"), INTERVALS.items())
def test_intervals(text: str, expected: int) -> None:
    assert parse_interval(text) == expected


@pytest.mark.parametrize("text", ["5 parsecs", "", "min", "1,5", "-5", " "])
def test_no_intervals(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_interval(text)


@given(st.integers(0, 30), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_parts_of_an_interval_add_up(
    days: int, hours: int, minutes: int, seconds: int
) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    for text in (
        f"{days}d{hours}h{minutes}m{seconds}s",
        f"{seconds} secs {minutes} mins {hours} HOURS {days} days",
    ):
        assert parse_interval(text) == total * 10**9 == nanoseconds(total)


@pytest.mark.parametrize(
    ("zone", "options", "expected"),
    [(row[0], row[1:5], row[5]) for row in WINDOWS],
    indirect=["zone"],
)
@pytest.mark.usefixtures("zone")
def test_windows(options: tuple[str | None, ...], expected: tuple[int, ...]) -> None:
    window = time_window(SPAN, *options)
    assert (
        tuple(
            moment - START
            for moment in (window.start_ns, window.finish_ns, window.origin_ns)
        )
        == expected
    )


@pytest.mark.parametrize("zone", ["Europe/Berlin"], indirect=True)
@pytest.mark.usefixtures("zone")
def test_iso_8601_and_seconds_since_1970() -> None:
    noon = 826_023_600_250_000_000
    for text in (
        "1996-03-05T12:00:00.25+01:00",
        "@1996-03-05T11:00:00.25Z",
        "1996-03-05T12:00:00.25",
        "@826023600.25",
    ):
        assert parse_moment(text, *SPAN) == noon


@pytest.mark.parametrize("zone", ["UTC"], indirect=True)
@pytest.mark.usefixtures("zone")
def test_a_day_alone_is_the_next_one_of_that_number() -> None:
    assert (
        parse_moment("@2 10:00", *SPAN)
        == datetime(1996, 4, 2, 10, tzinfo=UTC).timestamp() * 10**9
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("100d", None), "-S 100d.*after the archive's end"),
        (("2h", "@1996-03-04 14:30"), "-T .*before the start"),
        (("@tomorrow's", None), "-S @tomorrow's"),
        (("@Mar 40", None), "-S @Mar 40"),
        (("@25:00", None), "-S @25:00"),
        (("@Mar 5 10", None), "four digits.*colon"),
        (("@March", None), "'March' has no day"),
        (("@1996", None), "'1996' has no day"),
        (("@2 hours ago", None), "-S @2 hours ago"),
        (("@1996-03-05 14:07:47 XST", None), "unknown time zone XST"),
        (("yes", None), "-S yes"),
        ((None, None, None, "0"), "-A 0"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC"], indirect=True)
@pytest.mark.usefixtures("zone")
def test_what_is_no_window(options: tuple[str | None, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        time_window(SPAN, *options)


@given(st.integers(0, 302_400), st.integers(1, 100_000))
def test_an_aligned_start_is_the_next_multiple(start_s: int, step_s: int) -> None:
    window = time_window(SPAN, start=f"{start_s}s", align=f"{step_s}s")
    aligned = -(-(START + start_s * 10**9) // (step_s * 10**9)) * step_s * 10**9
    assert window.start_ns == (
        aligned if aligned <= SPAN[1] else START + start_s * 10**9
    )
