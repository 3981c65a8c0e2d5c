"""Values that people write, in YAML: numbers with bounds, texts, mappings without unknown keys."""

import ast
import inspect
import itertools
import textwrap
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StrictInt,
    StringConstraints,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

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

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the model's schema, with the texts below its keys.

        They are read here, not by `use_attribute_docstrings`: that parses every model whenever kveval is imported,
        a tenth of a second of every job, and only a schema has them.
        """
        schema = handler(core_schema)
        keys = handler.resolve_ref_schema(schema)["properties"]
        texts = _texts_below_keys(cls)
        for name, field in cls.model_fields.items():
            if texts.get(name):
                keys[field.alias or name].setdefault("description", texts[name])
        return schema


def _texts_below_keys(model: type[BaseModel]) -> dict[str, str]:
    """Return the text below each key of a model, where it is last declared; empty if there is none."""
    texts: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, Strict) and kind is not Strict:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            assert isinstance(definition, ast.ClassDef)
            for key, below in itertools.pairwise([*definition.body, ast.Pass()]):
                if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name):
                    alone = ast.Module([below], type_ignores=[])
                    texts[key.target.id] = ast.get_docstring(alone) or ""
    return texts
