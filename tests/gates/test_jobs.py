"""The jobs of a report stay the same, and what Snakemake's own report shows: jobs.json and snakemake_report.json.

Of every campaign that ships without results, and of those of campaigns.py with all of them. KVEVAL_UPDATE_GOLDEN=1 holds
what is planned and shown now.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.gates.campaigns import NAMES, PUBLISHED, STORED, real_data
from tests.gates.jobs import jobs_in

pytestmark = pytest.mark.workflow
COLD = Path(__file__).with_name("jobs.json")
SHOWN = Path(__file__).with_name("snakemake_report.json")


def require(made: Mapping[str, Any], path: Path) -> None:
    """Hold what is made against a file, which is written first if it is to be renewed."""
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        text = json.dumps(made, indent=1, ensure_ascii=False)
        # The jobs of a campaign are a line.
        text = re.sub(r"\{[^{}]*\}", lambda part: " ".join(part[0].split()), text)
        path.write_text(text + "\n", encoding="utf-8")
    held = json.loads(path.read_text(encoding="utf-8"))
    said = [
        line
        for name in sorted(held.keys() | made.keys())
        for line in differences(name, held.get(name), made.get(name))
    ]
    if said:
        pytest.fail("\n".join(said), pytrace=False)


def differences(name: str, held: Any, made: Any) -> Iterator[str]:
    """Yield a line for each part of an entry that is another."""
    if isinstance(held, dict) and isinstance(made, dict):
        for key in sorted(held.keys() | made.keys()):
            yield from differences(f"{name}: {key}", held.get(key), made.get(key))
    elif held != made:
        yield f"{name}: {held!r} -> {made!r}"


def test_a_campaign_that_ships_plans_the_jobs_that_it_did(planned: Path) -> None:
    require(json.loads((planned / "planned.json").read_text()), COLD)


@pytest.mark.parametrize(
    "name", [*NAMES, *STORED, pytest.param(PUBLISHED, marks=real_data)]
)
def test_a_finished_campaign_plans_nothing(name: str, results: Path) -> None:
    printed = (results / f"{name}.planned.txt").read_text(encoding="utf-8")
    assert jobs_in(printed) == {}


def test_snakemakes_own_report_shows_what_it_did(results: Path) -> None:
    page = (results / "snakemake.html").read_text(encoding="utf-8")
    require(shown(page), SHOWN)


def shown(page: str) -> dict[str, Any]:
    """Return path -> section, labels and caption of every file in Snakemake's report."""
    files, categories = (value_of(page, name) for name in ("results", "categories"))
    section_of = {
        path: f"{category}: {part}"
        for category, parts in categories.items()
        for part, paths in parts.items()
        for path in paths
    }
    assert section_of.keys() == files.keys()
    return {path: entry(section_of[path], files[path]) for path in sorted(files)}


def entry(section: str, file: Mapping[str, Any]) -> dict[str, str]:
    """Return what the report says of a file."""
    labels = [f"{name}: {label}" for name, label in file["labels"].items()]
    return {
        "section": section,
        "labels": ", ".join(labels),
        "caption": plain(file["caption"]),
    }


def value_of(page: str, name: str) -> Any:
    """Return the value of a variable of a page, an object."""
    assigned = f"var {name} = {{"
    assert page.count(assigned) == 1
    value, _ = json.JSONDecoder().raw_decode("{" + page.partition(assigned)[2])
    return value


def plain(text: str | None) -> str:
    """Return the text of a fragment of HTML."""
    return " ".join(re.sub("<[^>]*>", " ", text or "").split())
