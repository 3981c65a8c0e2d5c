"""The checkout of the repository whose catalogues, default campaign and server environment a command uses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kveval.host.errors import Failure

_MARKS = ("Snakefile", "config/models.yaml", "config/config.yaml")


class NoCheckout(Failure):
    """The repository's files are needed, and are neither here nor where kveval lies."""


@dataclass(frozen=True)
class Checkout:
    """A checkout of the repository; `root` is its folder."""

    root: Path

    @classmethod
    def from_folders(cls, *folders: Path) -> Checkout:
        """Find the checkout that one of the folders is in, else the one that this library is part of.

        Raises NoCheckout.
        """
        own = Path(__file__).resolve()
        for folder in (*folders, own):
            for root in (folder, *folder.parents):
                if all((root / mark).is_file() for mark in _MARKS):
                    return cls(root)
        raise NoCheckout(
            f"{folders[0]} is not in a checkout of the kveval repository, whose Snakefile and config/ are needed: go into"
            " one, or name it with --directory"
        )

    def relative(self) -> Checkout:
        """Return it as seen from the working directory, for short texts."""
        return Checkout(Path(os.path.relpath(self.root)))

    @property
    def catalogues(self) -> Path:
        """The folder of models, scenarios and workloads."""
        return self.root / "config"

    @property
    def default_campaign(self) -> Path:
        """The campaign that is meant where none is named."""
        return self.catalogues / "config.yaml"

    @property
    def server_environment(self) -> Path:
        """The Python environment of the local engine's server."""
        return self.root / ".server-venv"

    @property
    def benchmark_script(self) -> Path:
        """The script that measures one run."""
        return self.root / "scripts" / "benchmark.py"
