"""`kveval show`: one stored cell, at once, as text or as one JSON document."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table

from kveval.campaign.size import Size
from kveval.workflow.command.cell_document import Document, cell_document
from kveval.workflow.command.cell_lookup import RESULTS, find_cell
from kveval.workflow.command.checkout import Checkout
from kveval.workflow.command.output import print_document

# Between the cells of a row, and of a header, in the template.
_BETWEEN = "¦"


def show_cell(name: str, directory: Path | None, *, as_json: bool) -> None:
    """Print what is stored of a cell. Raises UnknownCell.

    `directory`: the folder that has results; by default the nearest one, from the present one upwards, else the
    checkout that kveval lies in.
    """
    working = _nearest_with_results() if directory is None else directory.absolute()
    document = cell_document(find_cell(name, working))
    if as_json:
        print_document(document)
    else:
        print(_text(document), end="")


def _nearest_with_results() -> Path:
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / RESULTS).is_dir():
            return folder
    return Checkout.from_folders(here).root or here


def _text(document: Document) -> str:
    """The document as text, see cell.txt.j2."""
    outcomes: dict[tuple[str, str], list[Document]] = {}
    for outcome in document["checks"]:
        key = outcome["severity"], outcome["check"]
        outcomes.setdefault(key, []).append(outcome)
    width = shutil.get_terminal_size((120, 24)).columns
    parts = _Parts(Console(width=width, highlight=False, markup=False, emoji=False))
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_output,
    )
    environment.filters |= {
        "figure": _figure,
        "percent": lambda share: None if share is None else f"{100 * share:.0f} %",
        "short": _short,
        "time": lambda text: text[:16].replace("T", " "),
        "whole": "{:,}".format,
    }
    file = Path(__file__).with_name("cell.txt.j2")
    return environment.from_string(file.read_text(encoding="utf-8")).render(
        document,
        conditions=dict.fromkeys(map(_conditions, document["runs"])),
        computed=any("throughput_tok_s" in level for level in document["levels"]),
        unit=_unit(document["levels"]),
        checks_by_code=outcomes.values(),
        size=Size,
        bold=parts.bold,
        indented=parts.indented,
        table=parts.table,
    )


@dataclass(frozen=True)
class _Parts:
    """The parts of the text that depend on the terminal: its width, and whether it has styles."""

    console: Console

    def bold(self, text: str) -> str:
        """Return a line in bold."""
        return self._printed(text, "bold")

    def indented(
        self, text: RenderableType, by: int = 2, style: str | None = None
    ) -> str:
        """Return a text, broken into lines that are all indented."""
        return self._printed(Padding(text, (0, by), expand=False), style)

    def table(
        self, rows: Iterable[Any], header: str, caller: Callable[[Any], str]
    ) -> str:
        """Return a table; `header`: titles, those of numbers end in a colon; `caller`: what writes the cells of a row."""
        table = Table(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim"
        )
        for title in _cells(header):
            table.add_column(
                title.removesuffix(":"),
                justify="right" if title.endswith(":") else "left",
                overflow="fold",
            )
        for row in rows:
            table.add_row(*_cells(caller(row)))
        return f"{self.indented(table)}\n"

    def _printed(self, part: RenderableType, style: str | None = None) -> str:
        with self.console.capture() as capture:
            self.console.print(part, style=style)
        return capture.get().removesuffix("\n")


def _cells(row: str) -> list[str]:
    return [re.sub(r"\s*\n\s*", " ", cell).strip() for cell in row.split(_BETWEEN)]


def _conditions(run: Document) -> str:
    """Return where and what a run was, in a line that is equal for runs alike."""
    host = run["host"]
    machine = f"{host['cpus']} x {host['cpu_model']}" if host["cpus"] else run["engine"]
    versions = [f"{name} {version}" for name, version in run["versions"].items()]
    where = f"{host['fingerprint'] or run['engine']}: {machine}"
    return ", ".join([where, *host["gpus"], f"{run['weights']} weights", *versions])


def _output(value: Any) -> Any:
    """The text of an expression: what separates cells is no part of a value."""
    if value is None:
        return "-"
    return value.replace(_BETWEEN, "|") if isinstance(value, str) else value


def _unit(levels: Iterable[Document]) -> str:
    """Return what the levels are: streams in a closed loop, requests per second in an open one."""
    if any(level.get("streams") == level["level"] for level in levels):
        return "streams"
    if any(level.get("rate_req_s") is not None for level in levels):
        return "req/s"
    return "level"


def _figure(value: float | None) -> str | None:
    """Return a number to three figures, or whole from 100 on."""
    if value is None:
        return None
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _short(path: str) -> str:
    """Return a path as seen from the present folder, if it is below."""
    full, here = Path(path), Path.cwd()
    return str(full.relative_to(here)) if full.is_relative_to(here) else path
