"""The model of a campaign that compares others: the same arms, measured twice, in one report.

Every scenario of campaign C with label L appears as SCENARIO-on-L.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from kveval.config.campaign import Campaign, MatrixEntry, ServerConfig
from kveval.config.problems import Mistake
from kveval.config.types import Name, PositiveInt, Strict


class Compared(Strict):
    """A campaign, and the label of its scenarios in the report."""

    campaign: Name = Field(description="a file of config/campaigns, without .yaml")
    label: Name = Field(description="what distinguishes it from the others: a release, a machine, a date")


def _nothing(matrix: tuple[MatrixEntry, ...]) -> tuple[MatrixEntry, ...]:
    if matrix:
        raise Mistake("a campaign that compares others measures nothing itself; leave out matrix", "mixed")
    return matrix


class CompareCampaign(Campaign):
    """An evaluation of other campaigns' measurements; nothing is deployed, so server and workload are not declared."""

    compare: tuple[Compared, ...] = Field(min_length=2)
    """measured campaigns for one report; each is compared with the first"""
    server: ServerConfig = ServerConfig.model_validate({"vllm": "0", "guidellm": "0"})
    """not used: every campaign has its own"""
    workload: Name = Field("as-measured", description="not used: every campaign has its own")
    matrix: Annotated[tuple[MatrixEntry, ...], AfterValidator(_nothing)] = ()
    runs: PositiveInt = Field(1, description="not used: every run that the campaigns have is one")


def named_on(scenario: str, label: str) -> str:
    """Return the name under which a scenario of a labelled campaign appears."""
    return f"{scenario}-on-{label}"
