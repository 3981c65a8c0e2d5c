"""System metrics of the catalogue, and names that depend on the version of a program."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, Self

from packaging.version import Version
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictBool,
    model_validator,
)

from kveval.campaign.types import version_text
from kveval.host.values import Mistake, Number, Strict, Text


def _named(value: Any) -> Any:
    return {"*": value} if isinstance(value, str) else value


def _version_keys(names: dict[str, str]) -> dict[str, str]:
    if not names:
        raise ValueError(
            "names nothing; valid is a name, or a mapping from the first version that has it to the name"
        )
    for key in names:
        if key != "*":
            version_text(key)
    return names


VersionedName = Annotated[
    dict[str, Text],
    BeforeValidator(_named, json_schema_input_type=str | dict[str, str]),
    AfterValidator(_version_keys),
]
"""A name that depends on the version: {"0.16": old, "0.24": new}, each from that version on; "*" for earlier ones."""


@cache
def _version(text: str) -> Version:
    return Version(text)


def name_for(names: Mapping[str, str], version: str) -> str | None:
    """Return the name in `version`: that of the highest key not above it; None if the version is before all keys."""
    release = _version(_version(version).public)
    by_release = {
        _version(key): name
        for key, name in names.items()
        if key != "*" and _version(key) <= release
    }
    return by_release[max(by_release)] if by_release else names.get("*")


class MetricSource(Strict):
    """The source of a system metric: a sum of PCP metrics, or a pair of them for a ratio; and which instances."""

    pcp: VersionedName | None = None
    """PCP metric, several joined by ' + ' to add them up, or {first vLLM version: metric}"""
    numerator: VersionedName | None = Field(
        None, description="reduction ratio: what is divided, named like pcp"
    )
    denominator: VersionedName | None = Field(
        None, description="reduction ratio: by what it is divided"
    )
    scale: Number = Field(
        1.0,
        description="what one unit of a metric without units is, in the column's unit",
    )
    select: Text | None = Field(
        None, description="regular expression: only instances whose name matches it"
    )
    omit: Text | None = Field(
        None, description="regular expression: no instances whose name matches it"
    )


class Metric(MetricSource):
    """One column of the system metrics: what is read from PCP, and how a level's window is reduced to a number."""

    title: Text = Field(description="the quantity in words, for tables and figures")
    unit: Text = Field(
        description="unit of the column; values are converted from the recorded unit"
    )
    alternatives: tuple[MetricSource, ...] = ()
    """other metrics of the same quantity; the first that was recorded is read"""
    reduction: Literal["mean", "max", "last", "rate", "increase", "ratio"]
    """how a window becomes one number: mean, max, last, ratio; for counters rate (per second), increase"""
    instances: Literal["sum", "mean", "max", "min", "share_above"] = "sum"
    """how instances, such as CPUs or GPUs, become one number: sum, mean, max, min, share_above"""
    above: Number | None = Field(
        None,
        description="share_above: per cent of instances above this many of the unit",
    )
    plausible: tuple[Number | None, Number | None] | None = None
    """[lowest, highest] possible value; others are refused; null is open"""
    optional: StrictBool = Field(
        False,
        description="not every deployment has it, so that its absence is not reported",
    )
    breakdown: StrictBool = Field(
        False, description="also a column NAME_by_instance, one number per instance"
    )
    table: Text | None = Field(
        None,
        description="title of the table that shows it in the report's appendix The system",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sources: list[MetricSource] = [self, *self.alternatives]
        for source in sources:
            pair = source.numerator is not None and source.denominator is not None
            if self.reduction == "ratio" and (not pair or source.pcp is not None):
                raise Mistake(
                    "reduction ratio takes numerator and denominator in place of pcp",
                    "ratio_without_parts",
                )
            if self.reduction != "ratio" and (
                source.pcp is None or source.numerator or source.denominator
            ):
                raise ValueError(
                    f"reduction {self.reduction} takes pcp; numerator and denominator belong to ratio"
                )
        if (self.instances == "share_above") != (self.above is not None):
            raise ValueError("above and instances: share_above go together")
        low, high = self.plausible or (None, None)
        if low is not None and high is not None and low >= high:
            raise ValueError(
                f"plausible [{low:g}, {high:g}] is empty; valid is [lowest, highest]"
            )
        return self
