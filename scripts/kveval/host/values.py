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

    # Every program of the workflow imports these classes, and few validate with one or ask for its schema: validators
    # are built at the first use, and the texts are read from the source for a schema alone.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the schema of pydantic, with the texts below the keys."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        texts: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            if issubclass(base, Strict):
                texts |= _attribute_texts(base)
        for name, field in cls.model_fields.items():
            if name in texts:
                described = properties[field.alias or name]
                described.setdefault("description", texts[name])
        return schema


def _attribute_texts(described: type) -> dict[str, str]:
    """Return the texts below the attributes of a class, by attribute."""
    source = textwrap.dedent(inspect.getsource(described))
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for attribute, below in itertools.pairwise(definition.body):
        match attribute, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = inspect.cleandoc(text)
    return texts
