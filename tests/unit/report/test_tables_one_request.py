"""The table of one request: its three times, what they are worth, and what it says where one is missing."""

import msgspec
import pytest
from tests.support.described import described_run
from tests.support.report_text import tables_in, text_of_template
from tests.support.synthetic import run_description

from kveval.campaign.cell import Cell
from kveval.report.build import source_times
from kveval.report.result.model import CampaignResult, ReportedCell
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
    cells = []
    for cell in (BASE, TIERED):
        measurements = [run.measurement for run in runs if run.cell == cell]
        cells.append(ReportedCell.model_construct(**cell.row, runs=measurements))
    return CampaignResult.model_construct(
        workloads=[],
        common_levels={"m": None},
        cells=cells,
        one_request=source_times(runs),
    )


def with_tier(tier: RequestTimes, cold: RequestTimes = COLD) -> CampaignResult:
    return result(
        run(BASE, 1, OneRequest(cold, DEVICE)),
        run(TIERED, 1, OneRequest(cold, DEVICE, tier)),
    )


def said(content: CampaignResult) -> str:
    return text_of_template(content, "one_request.md.j2")


def sentences(content: CampaignResult) -> list[str]:
    """The items below the table."""
    return [line for line in said(content).splitlines() if line.startswith("- ")]


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
    assert tables_in(said(content))[0].rows[-1][-2] == "4,034"


@pytest.mark.parametrize(
    ("tier", "sentence"),
    [((900, 1100), "was not faster than computing them."), ((900, 950), "")],
    ids=["as slow", "overlapping"],
)
def test_a_tier_that_saves_no_time_is_named(
    tier: tuple[float, float], sentence: str
) -> None:
    content = with_tier(times(*tier, served=4032))
    beginning = "- native-offload 5K: loading 4,032 tokens from the tier "
    assert sentences(content) == ([beginning + sentence] if sentence else [])


def test_what_has_no_time_says_why_and_an_older_run_that_it_was_not_timed() -> None:
    reason = "the tier served 0 of the prompts' 4,064 tokens"
    lacking = OneRequest(COLD, DEVICE, times(reason=reason))
    content = result(run(BASE, 1, None), run(TIERED, 1, lacking))
    [table] = tables_in(said(content))
    older, newer = table.rows
    assert (older[2], newer[4:]) == ("not timed", ["n/a"])
    assert sentences(content) == [f"- native-offload 5K, from the tier: {reason}."]
    last = content.one_request[-1]
    assert (last.requests, last.reason) == (0, reason)
    assert last.ttft_ms["median"] is None


def test_a_way_through_the_api_server_is_named() -> None:
    through = OneRequest(COLD, DEVICE, through="the API server")
    assert "They went through the API server," in said(result(run(BASE, 1, through)))
