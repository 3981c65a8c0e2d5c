"""The campaigns that measure nothing: of results that were measured elsewhere, and those that compare campaigns.

In a comparison every scenario of campaign C with label L appears as SCENARIO-on-L.
"""

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool

from kveval.campaign.campaign_file import Campaign, MatrixEntry, ServerConfig
from kveval.campaign.types import Name
from kveval.host.values import Mistake, PositiveInt, Strict, Text


def _nothing(matrix: tuple[MatrixEntry, ...]) -> tuple[MatrixEntry, ...]:
    if matrix:
        raise Mistake(
            "a campaign that imports or compares measures nothing itself; make two campaigns",
            "mixed",
        )
    return matrix


class Unmeasured(Campaign):
    """An evaluation of what was measured elsewhere; nothing is deployed, so server and workload are not declared."""

    server: ServerConfig = ServerConfig.model_validate({"vllm": "0", "guidellm": "0"})
    workload: Name = "as-measured"
    matrix: Annotated[tuple[MatrixEntry, ...], AfterValidator(_nothing)] = ()
    runs: PositiveInt = 1


class Compared(Strict):
    """A campaign, and the label of its scenarios in the report."""

    campaign: Name = Field(description="a file of config/campaigns, without .yaml")
    label: Name = Field(
        description="what distinguishes it from the others: a release, a machine, a date"
    )


class CompareCampaign(Unmeasured):
    """An evaluation of other campaigns' measurements: the same arms, measured twice, in one report."""

    compare: tuple[Compared, ...] = Field(min_length=2)
    """measured campaigns for one report; each is compared with the first"""


def named_on(scenario: str, label: str) -> str:
    """Return the name under which a scenario of a labelled campaign appears."""
    return f"{scenario}-on-{label}"


def _sheet_name(value: object) -> object:
    """Refuse what is no text, and name the command that makes a sheet."""
    if isinstance(value, str):
        return value
    message = "names the sheet of the results, a text, which this writes"
    raise Mistake(f"{message}: {sheet_command()}", "no_sheet")


def sheet_command(folders: Sequence[str] = (), sheet: str = "imports.csv") -> str:
    """Return the command that writes the sheet of folders of results."""
    return f"kveval import {' '.join(folders) or 'FOLDER'} --sheet {sheet}"


class ImportCampaign(Unmeasured):
    """An evaluation of results measured elsewhere."""

    sheet: Annotated[Text, BeforeValidator(_sheet_name)] = Field(alias="import")
    """the sheet of results measured elsewhere, which `kveval import` writes: imports.csv"""
    copy_imports: StrictBool = False
    """copy the files that the sheet names into the store, which otherwise refers to them"""
    workload: Name = "as-imported"
