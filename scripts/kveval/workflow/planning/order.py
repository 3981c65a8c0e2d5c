"""The order of a campaign's runs: blocks in random order, every second one mirrored, the same for the same seed."""

import random
from pathlib import Path

from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.store.run_file import pointer_of

_PLACES = 1_000_000


def block_of(config: Config, run: int) -> int:
    """Return the number of a run's block; the further runs of a bridge are in the blocks of the new cells."""
    return (run - 1) % config.campaign.runs + 1


def planned_runs(config: Config) -> list[tuple[Cell, int]]:
    """Return every run of the campaign, the runs of a block together, in the order of the matrix."""
    runs = [(cell, run) for cell in config.cells for run in config.runs_of(cell)]
    return sorted(runs, key=lambda entry: block_of(config, entry[1]))


def campaign_pointer(config: Config, cell: Cell, run: int) -> Path:
    """Return the file that points from the campaign's results to a run in the measurement store."""
    return pointer_of(config.campaign.results, cell, run)


def requested_file(config: Config) -> Path:
    """Return the file that lists the pointers of the measurements that the campaign's last snakemake was to make."""
    return Path("logs", config.campaign.name, "requested.json")


def priority(config: Config, cell: Cell, run: int) -> int:
    """Return the priority of a run: all runs of a block before those of the next one.

    The order within a block is random, and reversed in the next one: with few blocks, random orders alone would often
    have a cell in similar places, and a drift of the machine would look like an effect of the arm.
    """
    pair, second = divmod(run - 1, 2)
    place = random.Random(f"{config.campaign.seed}/{pair}/{cell.path}").randrange(
        _PLACES
    )
    place = _PLACES - 1 - place if second else place
    return _PLACES * (_PLACES - block_of(config, run)) + place


def in_order(config: Config) -> list[tuple[Cell, int]]:
    """Return every run of the campaign in the order in which runs are measured."""
    return sorted(planned_runs(config), key=lambda entry: -priority(config, *entry))
