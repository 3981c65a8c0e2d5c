"""The campaign that snakemake was asked for: a file, or values merged from several sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from snakemake.utils import update_config

from kveval.campaign.inheritance import ADDED, EXTENDS, campaign_values, with_site
from kveval.workflow.former_targets import CONFIG_KEYS

SITE = "site"
"""Key of --config site=FILE: a file with the `cluster` settings of a site."""
_KINDS = {"matrix", "import", "compare", EXTENDS}


def campaign_source(
    given: Mapping[str, Any], files: Sequence[Path], default: Path
) -> Path | dict[str, Any]:
    """Return the campaign's file, so that errors can name the line, or its values if they are not those of one file.

    `given`: Snakemake's `config` before the default campaign was read; `files`: those of --configfile; `default`: the
    campaign used if none is given. Values of --config override those of the files, or of the default; another
    workflow that uses this one as a module gives a whole campaign. A site's file overrides the campaign's `cluster`.
    Raises ConfigError for a wrong file.
    """
    site = given.get(SITE)
    found = _campaign(
        {key: value for key, value in given.items() if key not in (*CONFIG_KEYS, SITE)},
        files,
        default,
    )
    return with_site(complete_values(found), Path(site)) if site else found


def _campaign(
    given: Mapping[str, Any], files: Sequence[Path], default: Path
) -> Path | dict[str, Any]:
    asked = deepcopy(dict(given))
    written = _merged(_raw(file) for file in files)
    if files and _merged([written, asked]) == asked:
        if len(files) == 1 and written == asked:
            return files[0]
    elif not asked:
        return default
    elif _KINDS & asked.keys():
        return asked
    else:
        files = [default]
    over = {key: value for key, value in asked.items() if key not in (EXTENDS, ADDED)}
    return _merged([*(campaign_values(file) for file in files), over])


def complete_values(source: Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return a campaign's values merged with what it extends, which would not be found from another folder."""
    return campaign_values(source) if isinstance(source, Path) else dict(source)


def _raw(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text(encoding="utf-8")) or {}


def _merged(parts: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in parts:
        update_config(values, deepcopy(part))
    return values
