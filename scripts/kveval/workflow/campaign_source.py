"""The campaign that is meant by files and values, as Snakemake or a command was given them, and the file of it for jobs.

Snakemake and commands have it from here, and a job reads what they were given from a file of its own, complete:
`resolved_campaign_file`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from kveval.campaign.campaign_file import Campaign
from kveval.campaign.inheritance import ADDED, EXTENDS, campaign_values, with_site
from kveval.host.files import write_text
from kveval.host.hashing import content_hash

SITE = "site"
"""Key of --config site=FILE: a file with the `cluster` settings of a site."""
_KINDS = {"matrix", "import", "compare", EXTENDS}


def requested_campaign(
    file: Path | None,
    default: Path,
    *,
    site: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Path | dict[str, Any]:
    """Return what snakemake would have as its campaign with this --configfile and these values of --config.

    `default`: the campaign used if there is no file; `site`: the file of --config site=. Raises ConfigError for a wrong
    file.
    """
    files = [] if file is None else [file]
    if file is not None:
        campaign_values(file)
    values = _merged([*map(_raw, files), overrides or {}])
    if site is not None:
        values[SITE] = str(site)
    return campaign_source(values, files, default)


def campaign_source(
    config_values: Mapping[str, Any], files: Sequence[Path], default: Path
) -> Path | dict[str, Any]:
    """Return the campaign's file, so that errors can name the line, or its values if they are not those of one file.

    `config_values`: Snakemake's `config` before the default campaign was read; `files`: those of --configfile;
    `default`: the campaign used if none is given. Values of --config override those of the files, or of the default;
    another workflow that uses this one as a module gives a whole campaign. A site's file overrides the campaign's
    `cluster`.
    Raises ConfigError for a wrong file.
    """
    values = {key: value for key, value in config_values.items() if key != SITE}
    source = _without_site(values, files, default)
    site = config_values.get(SITE)
    return with_site(complete_values(source), Path(site)) if site else source


def _without_site(
    config_values: Mapping[str, Any], files: Sequence[Path], default: Path
) -> Path | dict[str, Any]:
    values = deepcopy(dict(config_values))
    written = _merged(map(_raw, files))
    if files and _merged([written, values]) == values:
        if len(files) == 1 and written == values:
            return files[0]
    elif not values:
        return default
    elif _KINDS & values.keys():
        return values
    else:
        files = [default]
    over = {key: value for key, value in values.items() if key not in (EXTENDS, ADDED)}
    return _merged([*map(campaign_values, files), over])


def complete_values(source: Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return a campaign's values merged with what it extends, which would not be found from another folder."""
    return campaign_values(source) if isinstance(source, Path) else dict(source)


def resolved_campaign_file(values: Mapping[str, Any]) -> Path:
    """Return the file in which jobs read a campaign of these complete values: named by them, so that it never changes.

    A job may start long after the campaign's own file was edited, and command lines have a limit.
    """
    digest = content_hash(_plain(values))
    return Path("logs", str(values["name"]), f"campaign-{digest}.yaml")


def write_resolved_campaign(values: Mapping[str, Any]) -> Path:
    """Write the file of a campaign for its jobs, unless it is there, and return it."""
    file = resolved_campaign_file(values)
    if not file.exists():
        # In a file without this key the campaign's name would give the folder of the results.
        results = Campaign.model_fields["results"].default
        content = {"results": results, **_plain(values)}
        write_text(file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return file


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as JSON has them: dates as text, ordered mappings as plain ones."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return plain


def _raw(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text(encoding="utf-8")) or {}


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in parts:
        values = overlaid(values, deepcopy(dict(part)))
    return values


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` over `below`, as Snakemake's update_config has it; a bare installation has no Snakemake.

    Mappings merge key by key, and an empty one changes nothing that is there; anything else is replaced.
    """
    values = dict(below)
    for key, value in above.items():
        if not isinstance(value, Mapping):
            values[key] = value
        elif value or key not in values:
            inner = values.get(key)
            values[key] = overlaid(inner if isinstance(inner, Mapping) else {}, value)
    return values
