"""The table of one request: its three times, what they are worth, and what it says where one is missing."""

import msgspec
import pytest
from tests.support.described import described_run
from tests.support.report_text import plain_table
from tests.support.synthetic import run_description

from kveval.campaign.cell import Cell
from kveval.report.build_result import source_times
from kveval.report.data.arm_links import plain_text
from kveval.report.result.model import CampaignResult, ReportedCell
from kveval.report.tables.one_request import (
    one_request_sentences,
    one_request_table,
    waypoints,
)
from kveval.store.run_file import OneRequest, RequestTime, RequestTimes, Run
from kveval.tables.one_request import one_request_times

BASE, TIERED = Cell("m", "no-offload", 0), Cell("m", "native-offload", 5000)


def times(*ttft_ms: float, served: int = 0, reason: str = "") -> RequestTimes:
    return RequestTimes([RequestTime(ms, 4064, served) for ms in ttft_ms], reason)


COLD, DEVICE = times(900, 1000, 1200), times(20, 30, 25, served=4048)


def run(cell: Cell, number: int, one_request: OneRequest | None) -> Run:
    plain = described_run(run_description(*cell.key, number))
    return msgspec.structs.replace(plain, one_request=one_request)


def result(*runs: Run) -> CampaignResult:
    """The result of a campaign that has nothing else than the times of one request."""
    cells = [
        ReportedCell.model_construct(
            **cell.row, runs=[run.measurement for run in runs if run.cell == cell]
        )
        for cell in (BASE, TIERED)
    ]
    return CampaignResult.model_construct(
        common_levels={"m": None}, cells=cells, one_request=source_times(runs)
    )


def with_tier(tier: RequestTimes, cold: RequestTimes = COLD) -> CampaignResult:
    return result(
        run(BASE, 1, OneRequest(cold, DEVICE)),
        run(TIERED, 1, OneRequest(cold, DEVICE, tier)),
    )


def test_an_arm_has_three_times_and_their_factor() -> None:
    content = with_tier(times(190, 200, 210, served=4032))
    table = one_request_table(content)
    assert list(table.header) == [
        *("model", "arm", "prompt, tokens", "cold, ms", "from the device, ms"),
        *("from the tier, ms", "tokens from the tier", "cold / tier"),
    ]
    cold, device = "1,000 (900 to 1,200)", "25 (20 to 30)"
    assert plain_table(table).rows == [
        ["m", "no-offload", "4,064", cold, device, "", "", ""],
        [
            "m",
            "native-offload 5K",
            "4,064",
            cold,
            device,
            "200 (190 to 210)",
            "4,032",
            "5.0",
        ],
    ]
    assert [*one_request_sentences(content)] == []


def test_times_are_over_all_runs_tokens_are_medians() -> None:
    first, second = (
        OneRequest(times(*ms), DEVICE, times(100, served=tokens))
        for ms, tokens in (((1, 2), 4000), ((3, 4, 5), 4010))
    )
    table = one_request_times([run(TIERED, 1, first), run(TIERED, 2, second)])
    cold, device, tier = table.to_dict("records")
    assert (cold["source"], cold["runs"], cold["requests"]) == ("cold", 2, 5)
    assert [cold[f"ttft_ms_{end}"] for end in ("median", "least", "most")] == [3, 1, 5]
    assert (tier["served_tokens"], tier["prompt_tokens"]) == (4005, 4064)
    assert (device["served_tokens"], device["reason"]) == (4048, "")


def test_a_median_between_two_counts_is_rounded_in_the_table_and_in_the_result() -> (
    None
):
    tier = RequestTimes([RequestTime(200, 4064, 4032), RequestTime(200, 4064, 4035)])
    content = with_tier(tier)
    assert content.one_request[-1].served_tokens == 4034
    assert one_request_table(content).rows[-1][-2] == "4,034"


@pytest.mark.parametrize(
    ("tier", "sentence"),
    [
        ((1300, 1400), "takes longer than computing them."),
        ((900, 1100), "was not faster than computing them."),
        ((900, 950), ""),
    ],
    ids=["slower", "as slow", "overlapping"],
)
def test_a_tier_that_saves_no_time_is_named(
    tier: tuple[float, float], sentence: str
) -> None:
    content = with_tier(times(*tier, served=4032))
    sentences = [*map(plain_text, one_request_sentences(content))]
    beginning = "native-offload 5K: loading 4,032 tokens from the tier "
    assert sentences == ([beginning + sentence] if sentence else [])


def test_what_has_no_time_says_why_and_an_older_run_that_it_was_not_timed() -> None:
    reason = "the tier served 0 of the prompts' 4,064 tokens"
    lacking = OneRequest(COLD, DEVICE, times(reason=reason))
    content = result(run(BASE, 1, None), run(TIERED, 1, lacking))
    table = one_request_table(content)
    assert table.rows[0][3] == "not timed"
    assert table.rows[1][5:] == ["n/a"]
    assert [*map(plain_text, one_request_sentences(content))] == [
        f"native-offload 5K, from the tier: {reason}."
    ]
    last = content.one_request[-1]
    assert (last.requests, last.reason) == (0, reason)
    assert last.ttft_ms["median"] is None


def test_runs_without_times_have_no_section() -> None:
    content = result(run(BASE, 1, None), run(TIERED, 1, None))
    assert one_request_table(content).rows == []
    assert content.one_request == []
    assert waypoints(content) == ""


def test_a_way_through_the_api_server_is_named() -> None:
    through = OneRequest(COLD, DEVICE, through="the API server")
    assert waypoints(result(run(BASE, 1, through))) == "the API server"
