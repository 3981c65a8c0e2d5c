"""The JSON schema of the configuration's files, which editors use."""

import json
from typing import Any

from kveval.campaign.campaign_file import Campaign
from kveval.campaign.entries import KINDS
from kveval.campaign.import_sheet import SheetRow
from kveval.campaign.imports import CompareCampaign, ImportCampaign
from kveval.campaign.inheritance import ADDED, EXTENDS


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a campaign file; those of the catalogues and of a sheet are in its $defs, by file name."""
    schema, importing, comparing = (
        kind.model_json_schema() for kind in (Campaign, ImportCampaign, CompareCampaign)
    )
    definitions = {**schema["$defs"], **importing["$defs"], **comparing["$defs"]}
    # Keys that a campaign which measures has to have, and one that imports or compares lacks.
    required = [
        name for name in schema["required"] if name not in importing["required"]
    ]
    schema["required"] = [name for name in schema["required"] if name not in required]
    matrix = {
        **importing["properties"]["matrix"],
        "description": schema["properties"]["matrix"]["description"],
    }
    schema["properties"] |= {
        "matrix": matrix,
        "import": importing["properties"]["import"],
        "copy_imports": importing["properties"]["copy_imports"],
        "compare": comparing["properties"]["compare"],
        EXTENDS: {
            "type": "string",
            "description": "another campaign of the same folder, from which everything else is taken",
        },
        ADDED: {
            **matrix,
            "description": "cells in addition to those of the extended campaign",
        },
    }
    schema["anyOf"] = [
        {"required": required},
        {"required": ["import"]},
        {"required": ["compare"]},
        {"required": [EXTENDS]},
    ]
    # A campaign that extends another may leave out any key of the server.
    definitions["ServerConfig"].pop("required")
    for kind, model in KINDS.items():
        inner = model.model_json_schema(ref_template="#/$defs/{model}")
        definitions.update(inner.pop("$defs", {}))
        if "extends" in inner["properties"]:
            # An entry that extends another may leave out any key.
            inner["anyOf"] = [
                {"required": ["extends"]},
                {"required": inner.pop("required")},
            ]
        definitions[model.__name__] = inner
        definitions[f"{kind}.yaml"] = {
            "type": "object",
            "additionalProperties": {"$ref": f"#/$defs/{model.__name__}"},
        }
    definitions[SheetRow.__name__] = SheetRow.model_json_schema()
    rows = {"$ref": f"#/$defs/{SheetRow.__name__}"}
    definitions["imports.csv"] = {"type": "array", "items": rows}
    _allow_partial_workloads(schema, definitions)
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }
    return json.loads(json.dumps(whole), object_hook=_on_one_line)  # type: ignore[no-any-return]


def _allow_partial_workloads(
    schema: dict[str, Any], definitions: dict[str, Any]
) -> None:
    """Let a campaign that extends another give only those keys of a workload that differ."""
    whole, part = "Workload", "WorkloadChanges"
    definitions[part] = {
        **definitions[whole],
        "title": part,
        "description": "keys of a workload of the extended campaign that differ",
    }
    definitions[part].pop("required")
    (names,) = schema["properties"]["workloads"].pop("patternProperties")

    def workloads(definition: str) -> dict[str, Any]:
        entry = {"$ref": f"#/$defs/{definition}"}
        return {"properties": {"workloads": {"patternProperties": {names: entry}}}}

    schema["if"] = {"required": [EXTENDS]}
    schema["then"] = workloads(part)
    schema["else"] = workloads(whole)


def _on_one_line(entry: dict[str, Any]) -> dict[str, Any]:
    description = entry.get("description")
    if not isinstance(description, str):
        return entry
    return {**entry, "description": " ".join(description.split())}
