"""A cell: one point of the evaluation. Its path and its row are made and read here alone.

Pure, and without any other part of the library but the base of its failures, because
stored runs name their cell too and are read where nothing of a campaign is known.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from typing import Any, Self

from kveval.host.errors import Failure

CELL_COLUMNS = ("model", "scenario", "cpu_blocks")
"""The columns that name a cell, in every table; also the wildcards of its path."""
BLOCKS = "0|[1-9][0-9]*"
"""Regular expression of a size as a path has it."""


class CellError(Failure):
    """A text that is to be a cell's path is none."""


@dataclass(frozen=True, order=True)
class Cell:
    """A model, an arm (`scenario`) and the size of the arm's tier in host memory.

    `cpu_blocks`: 16-token blocks of the model as served, of all its layers; 0 without
    such a tier. Cells are ordered by their names.
    """

    model: str
    scenario: str
    cpu_blocks: int

    @classmethod
    def from_path(cls, path: str) -> Self:
        """Return the cell of MODEL/SCENARIO/CPU_BLOCKS. Raises CellError."""
        parts = path.split("/")
        if len(parts) != len(CELL_COLUMNS) or not all(parts):
            message = f"{path!r} is not a cell's path: MODEL/SCENARIO/CPU_BLOCKS"
            raise CellError(message, code="no_path", path=path)
        model, scenario, blocks = parts
        if not re.fullmatch(BLOCKS, blocks):
            message = f"{blocks!r} is not a number of blocks"
            raise CellError(message, code="no_number", path=path)
        return cls(model, scenario, int(blocks))

    @classmethod
    def from_arm(cls, model: str, arm: str) -> Self:
        """Return the cell of SCENARIO/CPU_BLOCKS of a model. Raises CellError."""
        return cls.from_path(f"{model}/{arm}")

    @classmethod
    def from_folder(cls, folder: PurePath) -> Self:
        """Return the cell whose results .../MODEL/SCENARIO/CPU_BLOCKS has. Raises CellError."""
        return cls.from_path("/".join(folder.parts[-len(CELL_COLUMNS) :]))

    @classmethod
    def from_row(cls, row: Mapping[Any, Any]) -> Self:
        """Return the cell that a row of a table names in CELL_COLUMNS."""
        return cls(str(row["model"]), str(row["scenario"]), int(row["cpu_blocks"]))

    @property
    def row(self) -> dict[str, Any]:
        """The cell in CELL_COLUMNS."""
        return asdict(self)

    @property
    def key(self) -> tuple[str, str, int]:
        """The values of CELL_COLUMNS, for rows of tables."""
        return self.model, self.scenario, self.cpu_blocks

    @property
    def path(self) -> str:
        """The cell's folder below the campaign's results."""
        return f"{self.model}/{self.scenario}/{self.cpu_blocks}"

    @property
    def arm(self) -> str:
        """The arm with its size, as campaign files name one: SCENARIO/CPU_BLOCKS."""
        return f"{self.scenario}/{self.cpu_blocks}"

    @property
    def label(self) -> str:
        """The arm with its size, as tables and figures name it: `native-offload 10K`."""
        return arm_label(self.scenario, self.cpu_blocks)

    @property
    def full_label(self) -> str:
        """The model and the arm with its size, as sentences name them: `Qwen3-8B with native-offload 10K`."""
        return f"{self.model} with {self.label}"

    def is_named(self, name: str) -> bool:
        """Tell whether SCENARIO, which means all sizes, or SCENARIO/CPU_BLOCKS means it."""
        return name in (self.scenario, self.arm)

    def on(self, model: str) -> Self:
        """Return the cell of the same arm and size of another model."""
        return replace(self, model=model)


def arm_label(scenario: str, cpu_blocks: int) -> str:
    """Return how tables and figures name an arm with a size, of whatever models."""
    return f"{scenario} {blocks_label(cpu_blocks)}" if cpu_blocks else scenario


def blocks_label(blocks: int) -> str:
    """Return a number of blocks in short form: 10K for 10,000, 500 for 500."""
    thousands, rest = divmod(blocks, 1000)
    return f"{thousands}K" if thousands and not rest else str(blocks)
