"""The campaigns that measure nothing: of results that were measured elsewhere, and those that compare campaigns.

In a comparison every scenario of campaign C with label L appears as SCENARIO-on-L.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool

from kveval.campaign.campaign_file import Campaign, MatrixEntry, ServerConfig
from kveval.campaign.catalogue import Catalogue
from kveval.campaign.problems import ConfigProblem
from kveval.campaign.result_names import NamePattern, NameProblem
from kveval.campaign.types import Name, VersionText
from kveval.host.values import CountInt, Mistake, PositiveInt, Strict, Text


class Import(Strict):
    """A tree of existing results: which of them to import, and what their names mean in this workflow."""

    path: Text = Field(
        description="folder of the results, absolute or relative to the repository"
    )
    hardware: Text | None = None
    """only results whose names have exactly this hardware; the others are listed as not selected"""
    software: Text | None = Field(
        None, description="only results whose names have exactly this release"
    )
    replicas: PositiveInt | None = Field(
        None, description="only results with this number of replicas"
    )
    models: dict[Text, Name] = Field(
        {}, description="what names and reports call a model -> its name in models.yaml"
    )
    scenarios: dict[Text, Name] = Field(
        {}, description="what names call an arm -> its name in scenarios.yaml"
    )
    pattern: Text | None = None
    """names of single report files, with as many folders as they have: {arm}/benchmarks-{model}.json"""
    vllm: VersionText | None = None
    """vLLM's release (it decides how metrics are called), if no start-up log names it"""
    tensor_parallel_size: PositiveInt | None = None
    """GPUs of one server, if neither arguments nor settings say it; else as many as the hardware's name says"""
    cpu_blocks: dict[Name, CountInt] = Field({})
    """scenario -> size of its CPU tier, if neither names nor arguments say it"""
    archives: tuple[Text, ...] = ()
    """PCP archives that cover several results, relative to path; found by their names when left out"""
    copy_files: StrictBool = Field(False, alias="copy")
    """copy the files into the store, which otherwise refers to them"""


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


class ImportCampaign(Unmeasured):
    """An evaluation of results measured elsewhere."""

    imports: tuple[Import, ...] = Field(alias="import", min_length=1)
    """trees of existing results, from which cells are made instead of measured"""
    workload: Name = "as-imported"

    def vllm(self, asked: Import) -> str:
        """Return the release of vLLM that the campaign declares for an import, "0" if none."""
        return asked.vllm or self.server.vllm


def import_problems(
    campaign: Campaign, catalogue: Catalogue, place: str
) -> Iterator[ConfigProblem]:
    """Yield the mistakes in a campaign's imports that their types do not catch: paths, patterns, repetition."""
    if not isinstance(campaign, ImportCampaign):
        return
    seen: dict[str, int] = {}
    for index, asked in enumerate(campaign.imports):
        key = f"import[{index}]"
        if not Path(asked.path).is_dir():
            what, code = (
                ("is not a folder", "no_folder")
                if Path(asked.path).exists()
                else ("does not exist", "absent")
            )
            yield ConfigProblem(
                place,
                f"{key}.path",
                f"{asked.path} {what}",
                "a folder of results",
                code,
            )
            continue
        for number, archive in enumerate(asked.archives):
            if not (Path(asked.path) / archive).exists():
                message = f"there is no {archive} in {asked.path}"
                yield ConfigProblem(
                    place, f"{key}.archives[{number}]", message, code="absent"
                )
        if asked.pattern is not None:
            try:
                NamePattern(
                    asked.pattern,
                    {*catalogue.models, *asked.models},
                    {*catalogue.scenarios, *asked.scenarios},
                )
            except NameProblem as problem:
                yield ConfigProblem(
                    place, f"{key}.pattern", str(problem), code=problem.code
                )
        earlier = seen.setdefault(asked.model_dump_json(), index)
        if earlier != index:
            yield ConfigProblem(
                place, key, f"repeats import[{earlier}]", code="repeated"
            )
