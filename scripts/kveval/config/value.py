"""The value of the results: latency limits that requests have to meet, and prices of the hardware that serves them.

Neither defines a measurement: both may be declared and changed after everything has been measured.
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from kveval.config.problems import Mistake
from kveval.config.types import PositiveNumber, Strict

Limit = PositiveNumber | None


class GoodputLimits(Strict):
    """Limits on a request's latencies; goodput is the rate of requests that meet all of them."""

    ttft_ms: Limit = Field(None, description="longest time to the first token")
    tpot_ms: Limit = Field(None, description="longest latency per output token, first token included (GuideLLM's TPOT)")
    itl_ms: Limit = None
    """longest mean gap between the tokens of a request, which other benchmarks call TPOT"""
    e2e_ms: Limit = Field(None, description="longest latency of a whole request")
    of: Literal["requests", "sessions"] = "requests"
    """what counts: requests, or sessions (conversations, of which every turn must meet the limits)"""

    @property
    def declared(self) -> dict[str, Any]:
        """The limits that were given, and `of`, as plain values."""
        return self.model_dump(exclude_none=True)

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if len(self.declared) == 1:
            raise Mistake("limits nothing: give at least one of ttft_ms, tpot_ms, itl_ms, e2e_ms", "no_limit")
        return self


class Prices(Strict):
    """Prices per hour in US dollars."""

    gpu_hour_usd: PositiveNumber | None = Field(None, description="price of a GPU, with its share of the host")
    host_hour_usd: PositiveNumber | None = None
    """price of the host of one server, if there is no GPU or the host is paid separately"""
    host_gib_hour_usd: PositiveNumber | None = None
    """price of a GiB of host memory, paid for the tiers; without it a tier costs nothing"""

    @property
    def declared(self) -> dict[str, float]:
        """The prices that were given."""
        return self.model_dump(exclude_none=True)

    @model_validator(mode="after")
    def _of_a_server(self) -> Self:
        if self.gpu_hour_usd is None and self.host_hour_usd is None:
            said = "give gpu_hour_usd, or host_hour_usd where there is no GPU: every server has a price"
            raise Mistake(said, "no_price")
        return self
