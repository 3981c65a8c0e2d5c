"""The words for what a failed check says of a run, for reasons beside a verdict; tables of checks have the codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FAILURES: Mapping[str, str] = {
    "level_failed": "the level could not be measured",
    "completed": "no request was completed",
    "errors": "more than 1 % of the requests failed",
    "window": "the window of the report is not the recorded one",
    "streams": "the report is of another number of streams",
    "steadiness": "the rate of tokens was not steady",
    "littles_law": "requests in flight do not follow from rate and latency",
    "schedule": "requests were sent more than a second late",
    "percentiles": "the quantiles of a latency are impossible",
    "server_tokens": "the tokens received are not those that the server counted",
    "server_rate": "the tokens received are not those that the server's counter shows in the window",
    "queues": "the server had more requests than were sent",
    "others_on_server": "the server generated more than 10 % of its tokens for others",
    "turns": "conversations did not reach their last turn",
    "unobserved_is_missing": "requests without a first token have a TTFT",
    "partial_output": "the report counts no tokens of the many unfinished requests",
    "incomplete_share": "too many requests were unfinished at the end",
    "saturated_open_loop": "the server did not keep up with the rate that was sent",
    "no_reuse": "prompts have nothing in common that a cache could serve",
    "loading_switched_off": "tokens were loaded from the tier although loading was switched off",
    "answers": "a cache changed answers",
    "known_wrong_answers": "the server's arguments are known to give wrong answers",
    "provenance": "another version ran than declared",
    "kv_bytes": "the bytes of the tier do not follow from the model's geometry",
    "kv_capacity": "the device's cache is not as large as the server said",
    "tier_capacity": "the tier is not as large as asked for",
    "hardware_probed": "the device's cache does not fit the probed GPUs",
    "counter_names": "the server has no counter of a name that the arm requires",
    "tpot_definition": "TPOT is defined in another way",
}
"""The code of a check that can fail -> what its failure says of a run."""


def failures_text(codes: Iterable[str]) -> str:
    """Return what the failure of these checks says of a run; a check that is not in FAILURES is named by its code."""
    return " and ".join(
        FAILURES.get(code, f"the check `{code}` failed") for code in codes
    )
