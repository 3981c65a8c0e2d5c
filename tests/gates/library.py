"""What the gates ask of the library: the one module of theirs that a move of its modules changes."""

import csv
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
from typer.main import get_command

from kveval.campaign.specification import Specification
from kveval.configuration.loading import load_catalogue, load_config
from kveval.engines.kubernetes.preview import preview_text
from kveval.host import hardware
from kveval.load.guidellm import LoadTarget, command, levels_of
from kveval.plugins.imports.sheet import update_sheet
from kveval.store.run_file import read_run
from kveval.workflow.command.main import app

REPOSITORY = Path(__file__).resolve().parents[2]
CATALOGUES = REPOSITORY / "config"
PROGRAMS = {
    "kveval": "kveval",
    "pcp-parquet": "pcp_parquet",
    "python -m kveval.campaign": "kveval.campaign",
    "python -m kveval.report": "kveval.report",
}
"""What a user starts -> the package that Python runs."""
_KIND = re.compile(r"^kind: (\S+)", re.MULTILINE)
_NAME = re.compile(r"^metadata:\n(?:  .*\n)*?  name: (\S+)", re.MULTILINE)
_APART = ("argv", "env", "companions", "cell")


@dataclass(frozen=True)
class PlannedCell:
    """A cell with the id and the definition of its measurement, the counters that prove it active, its runs."""

    model: str
    scenario: str
    cpu_blocks: int
    measurement: str
    specification: dict[str, Any]
    required: tuple[dict[str, Any], ...]
    runs: tuple[int, ...]


def command_words(group: click.Command | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command of `kveval`; first those of the command itself, which are none."""
    yield ()
    commands = getattr(group or get_command(app), "commands", {})
    for name, part in commands.items():
        yield from ((name, *words) for words in command_words(part))


def verdicts(results: Path) -> Iterator[dict[str, str]]:
    """Yield what a folder of results says of every comparison, of every contrast and of every peak, as texts."""
    for table in ("comparison", "contrasts"):
        for row in _rows(results / "analysis" / f"{table}.csv"):
            yield {
                "table": table,
                "cell": _cell(row),
                "baseline": row["baseline"],
                "level": row["level"],
                "metric": row["metric"],
                "verdict": row["verdict"],
                "estimate": row["effect_percent"],
                "low": row["low_percent"],
                "high": row["high_percent"],
                "codes": " ".join(_codes(row)),
            }
    for row in _rows(results / "analysis" / "peak_throughput_all.csv"):
        yield {
            "table": "peaks",
            "cell": _cell(row),
            "baseline": "",
            "level": row["level"],
            "metric": "throughput_tok_s",
            "verdict": "",
            "estimate": row["throughput_tok_s"],
            "low": row["throughput_low_tok_s"],
            "high": row["throughput_high_tok_s"],
            "codes": "",
        }


def planned_cells(campaign: Path, catalogues: Path) -> Iterator[PlannedCell]:
    """Yield the cells of a campaign file in its order."""
    config = load_config(campaign, catalogues)
    for cell in config.cells:
        yield PlannedCell(
            cell.model,
            cell.scenario,
            cell.cpu_blocks,
            config.measurement_id(cell),
            dict(config.specification(cell).to_json()),
            tuple(dict(entry) for entry in config.required_counters(cell)),
            tuple(config.runs_of(cell)),
        )


def write_import_sheet(tree: Path, sheet: Path) -> None:
    """Write the sheet of a tree of results, as `kveval import` does."""
    update_sheet([tree], sheet, load_catalogue(CATALOGUES))


def host_fingerprint() -> str:
    """Return the fingerprint under which this host adopts stored runs."""
    return str(hardware.probe()["fingerprint"])


def measurements(
    source: Path | Mapping[str, Any], paths: list[str] | None = None
) -> dict[str, Any]:
    """Return what a campaign measures, by cell; `paths`: cells to look at, in place of those of its matrix."""
    config = load_config(source, CATALOGUES)
    cells = [config.cell(path) for path in paths or []] or config.cells
    found: dict[str, Any] = {cell.path: _of_cell(config, cell) for cell in cells}
    if cells:
        found["load"] = _load(config.specification(cells[0]).workload)
    if config.campaign.cluster is not None:
        found["every cell"] = _shared([found[cell.path]["manifests"] for cell in cells])
    for entry, compared in config.compared:
        found[f"compared: {entry.label}"] = {
            cell.path: compared.measurement_id(cell) for cell in compared.cells
        }
    return found


def manifests(campaign: Mapping[str, Any], path: str) -> list[str]:
    """Return every document, as YAML, that a cell of a campaign on a cluster is deployed with."""
    config = load_config(campaign, CATALOGUES)
    specification = config.specification(config.cell(path))
    site = config.campaign.cluster
    assert site is not None
    text = preview_text(specification, site, config.campaign.name)
    return text.split("---\n")[1:]


def defining_id(place: Path) -> str:
    """Return the id of what a stored run says that it measured, having read all of its description."""
    run = read_run(place)
    specification = Specification.from_json(run.specification)
    assert run.measurement == specification.measurement_id
    assert run.cell == specification.cell
    return specification.measurement_id


def _of_cell(config: Any, cell: Any) -> dict[str, Any]:
    """Return a cell's id, command lines as text, and a digest of each thing that is long."""
    specification = config.specification(cell)
    content = specification.to_json()
    found: dict[str, Any] = {
        "id": config.measurement_id(cell),
        "runs": len(config.runs_of(cell)),
        "baseline": baseline.path if (baseline := config.baseline(cell)) else None,
        "argv": shlex.join(content["argv"]),
        "env": shlex.join(_assignments(content["env"])),
    }
    for beside in content.get("companions", []):
        words = [*_assignments(beside.get("env", {})), *beside["argv"]]
        found[f"beside: {beside['name']}"] = shlex.join(words)
    found["counters"] = [
        shlex.join(f"{key}={value}" for key, value in counter.items())
        for counter in config.required_counters(cell)
    ]
    found["parts"] = " ".join(
        f"{name}={_digest(value) if isinstance(value, dict) else value}"
        for name, value in content.items()
        if name not in _APART
    )
    if config.searches and config.pilot(cell) == cell:
        found["pilot"] = config.pilot_specification(cell).measurement_id
    if (site := config.campaign.cluster) is not None:
        text = preview_text(specification, site, config.campaign.name)
        found["manifests"] = _documents(text)
    return found


def _load(workload: Any) -> list[str]:
    """Return the load generator's command line of every level of the first run; of the second, a digest."""
    return [*_commands(workload, 1), _digest(_commands(workload, 2))]


def _commands(workload: Any, run: int) -> list[str]:
    target = LoadTarget("http://server", "served-name", Path("/tokenizer"))
    found = []
    for level in levels_of(workload, run):
        report = Path("/reports", level.report_name)
        found.append(shlex.join(command("guidellm", workload, level, target, report)))
    return found


def _shared(manifests: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    """Take the parts out that are equal in all cells, and return them."""
    shared = dict(manifests[0])
    for one in manifests:
        shared = {key: one[key] for key in shared if one.get(key) == shared[key]}
    for one in manifests:
        for heading in shared:
            del one[heading]
    return shared


def _documents(text: str) -> dict[str, list[str]]:
    """Return kind, name and digest of every document of a preview, by the heading above them."""
    heading, found = "", dict[str, list[str]]()
    for document in text.split("---\n")[1:]:
        if document.startswith("# "):
            heading = document.partition("\n")[0].removeprefix("# ")
        kind = _KIND.search(document)
        name = _NAME.search(document)
        assert kind and name, document
        found.setdefault(heading, []).append(f"{kind[1]} {name[1]} {_digest(document)}")
    return found


def _rows(table: Path) -> Iterable[dict[str, str]]:
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _cell(row: Mapping[str, str]) -> str:
    return f"{row['model']}/{row['scenario']}/{row['cpu_blocks']}"


def _codes(row: Mapping[str, str]) -> list[str]:
    """Return the codes of a verdict's findings, and those of the runs that are left out, with the checks that failed."""
    left_out = {
        ":".join([entry["code"], *entry.get("facts", {}).get("checks", [])])
        for entry in json.loads(row["exclusions"] or "[]")
    }
    return [*row["grounds"].split(";")] * bool(row["grounds"]) + sorted(left_out)


def _assignments(env: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(env.items())]


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
