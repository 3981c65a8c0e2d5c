"""Rendering of the templates in manifests/ to plain documents."""

import functools
import json
import math
from typing import Any

import jinja2
import yaml

from kveval.engines.kubernetes.api.kinds import Document
from kveval.host.errors import Failure
from kveval.host.shipped import shipped_folder
from kveval.host.values import Strict

MANIFESTS = shipped_folder("manifests")


class ManifestError(Failure):
    """A template cannot be filled."""


def documents(template: str, **values: Any) -> tuple[Document, ...]:
    """Fill a template and return its documents. Raises ManifestError with the template's name and what is missing."""
    try:
        parsed = list(
            yaml.load_all(filled(template, **values), Loader=yaml.CSafeLoader)
        )
    except (jinja2.TemplateError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ManifestError(
            f"manifests/{template}: {reason}",
            code="not_filled",
            template=template,
            said=reason,
        ) from error
    return tuple(document for document in parsed if document is not None)


def filled(template: str, **values: Any) -> str:
    """Return the text of a filled template. Raises jinja2.TemplateError."""
    return _environment().get_template(template).render(**values)


def to_text(documents: tuple[Document, ...]) -> str:
    """Return documents as one YAML text for human readers."""
    return yaml.dump_all(
        documents, Dumper=_Readable, sort_keys=False, width=120, allow_unicode=True
    )


class _Readable(yaml.CSafeDumper):
    """Writes texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write repeated values in full, without YAML aliases."""
        return True


def _text(dumper: _Readable, text: str) -> yaml.Node:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Readable.add_representer(str, _text)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(MANIFESTS),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.filters["tojson"] = lambda value: json.dumps(
        value, ensure_ascii=False, default=_plain
    )
    environment.filters["size"] = _size
    return environment


def _size(size_bytes: int) -> str:
    """Return bytes as a Kubernetes quantity, rounded up to MiB."""
    return f"{math.ceil(size_bytes / 2**20)}Mi"


def _plain(value: Any) -> Any:
    """Return a part of the site's configuration as plain data; raise for an undefined name or an unknown type."""
    if isinstance(value, jinja2.Undefined):
        return str(value)
    if isinstance(value, Strict):
        return value.model_dump(exclude_none=True)
    raise ManifestError(f"{value!r} cannot be written to a manifest")
