"""Names, labels and selectors of the objects on a cluster, where several cells share one namespace."""

import hashlib
import re

MANAGER = "kveval"
MANAGED_BY = "app.kubernetes.io/managed-by"
NAME = "app.kubernetes.io/name"
PREFIX = "kveval.dev"
CELL_ANNOTATION = f"{PREFIX}/cell-path"
"""Annotation with the cell's full path, which is too long for a label and has characters that labels must not have."""
VALUE_LENGTH = 63
OBJECT_LENGTH = 52
"""Longest name of an object: a Job's pods and a Deployment's replica sets add to it and keep within 63."""
_HASH_LENGTH = 8


def label_value(text: str) -> str:
    """Return `text` as the value of a label: at most 63 of A-Z a-z 0-9 - _ and ., a letter or digit at both ends.

    A changed text gets a hash appended, so that different texts have different values.
    """
    value = re.sub(r"[^A-Za-z0-9_.-]", ".", text).strip("-_.")
    if value == text and len(value) <= VALUE_LENGTH:
        return value
    head = value[: VALUE_LENGTH - _HASH_LENGTH - 1].rstrip("-_.")
    return f"{head}-{_digest(text)}" if head else _digest(text)


def labels(
    campaign: str, cell_path: str, run: int | None, measurement: str, component: str
) -> dict[str, str]:
    """Return the labels of an object; one that does not apply to it (the cell of a campaign's storage) is empty."""
    return {
        MANAGED_BY: MANAGER,
        NAME: component,
        f"{PREFIX}/campaign": label_value(campaign),
        f"{PREFIX}/cell": label_value(cell_path) if cell_path else "",
        f"{PREFIX}/run": "" if run is None else str(run),
        f"{PREFIX}/measurement": measurement,
        f"{PREFIX}/component": component,
    }


def selector(
    campaign: str | None = None,
    cell: str | None = None,
    run: int | None = None,
    component: str | None = None,
) -> str:
    """Return the label selector of all objects of this program, or of those with the given labels (`cell`: a path)."""
    filters = {
        f"{PREFIX}/campaign": None if campaign is None else label_value(campaign),
        f"{PREFIX}/cell": None if cell is None else label_value(cell),
        f"{PREFIX}/run": None if run is None else str(run),
        f"{PREFIX}/component": component,
    }
    required = {MANAGED_BY: MANAGER} | {
        name: value for name, value in filters.items() if value is not None
    }
    return ",".join(f"{name}={value}" for name, value in required.items())


def object_name(
    cell_path: str, run: int | None, component: str, campaign: str = ""
) -> str:
    """Return the name of a cell's object: an RFC 1123 label of at most 52 characters.

    Cell, run and component make it readable; a hash of them, and of the campaign, makes it unique.
    """
    unique = _digest("\n".join([campaign, cell_path, str(run), component]))
    end = f"{'' if run is None else f'-r{run}'}-{_dns(component)}-{unique}"
    head = _dns(cell_path or campaign)[: OBJECT_LENGTH - len(end)].strip("-")
    name = f"{head}{end}".strip("-")
    # A Service's name has to begin with a letter (RFC 1035).
    return name if name[0].isalpha() else f"k{name}"[:OBJECT_LENGTH]


def _dns(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]
