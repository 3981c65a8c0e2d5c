"""Values that people write, in YAML: numbers with bounds, texts, mappings without unknown keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints

PositiveInt = Annotated[StrictInt, Field(gt=0)]
CountInt = Annotated[StrictInt, Field(ge=0)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
PositiveNumber = Annotated[Number, Field(gt=0)]
Share = Annotated[Number, Field(gt=0, le=1)]
Text = Annotated[str, StringConstraints(min_length=1)]


class Mistake(ValueError):
    """A value that a type refuses; `code`: a stable identifier of the kind of mistake."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Strict(BaseModel):
    """Base of everything read from YAML: frozen, unknown keys refused.

    The text below a key describes it in the JSON schema and in docs/, as `description` does in the same line.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True
    )
