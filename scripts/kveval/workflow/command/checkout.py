"""The checkout of the repository whose catalogues, default campaign and server environment a command uses.

An installed package has a copy of the catalogues, which is used outside of checkouts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kveval.host.errors import Failure
from kveval.host.shipped import shipped_folder

_MARKS = ("Snakefile", "config/models.yaml", "config/config.yaml")


class NoCheckout(Failure):
    """A file is needed that only a checkout has, and neither is there one here nor does kveval lie in one."""


@dataclass(frozen=True)
class Checkout:
    """A checkout of the repository; `root` is its folder, None for an installed package outside of any."""

    root: Path | None

    @classmethod
    def from_folders(cls, *folders: Path) -> Checkout:
        """Find the checkout that one of the folders is in, else the one that this library is part of, if it is."""
        own = Path(__file__).resolve()
        for folder in (*folders, own):
            for root in (folder, *folder.parents):
                if all((root / mark).is_file() for mark in _MARKS):
                    return cls(root)
        return cls(None)

    def relative(self) -> Checkout:
        """Return it as seen from the working directory, for short texts."""
        return Checkout(None if self.root is None else Path(os.path.relpath(self.root)))

    @property
    def warning(self) -> str:
        """Say so where this program is that of another checkout, as in an environment that two of them share."""
        own = Checkout.from_folders().root
        library = Path("scripts", "kveval")
        if self.root is None or own is None or not (self.root / library).is_dir():
            return ""
        if (own / library).samefile(self.root / library):
            return ""
        return (
            f"This kveval is that of the checkout {own}, and reads the files of {self.root.resolve()}: programs and files"
            " of one checkout belong together. In that one: bash scripts/run.sh COMMAND"
        )

    @property
    def catalogues(self) -> Path:
        """The folder of models, scenarios and workloads."""
        return shipped_folder("config") if self.root is None else self.root / "config"

    @property
    def default_campaign(self) -> Path:
        """The campaign that is meant where none is named."""
        return self.catalogues / "config.yaml"

    @property
    def campaigns(self) -> Path:
        """The folder of the campaigns that are shipped, each known by its file's name."""
        return self.catalogues / "campaigns"

    @property
    def server_environment(self) -> Path:
        """The Python environment of the local engine's server. Raises NoCheckout."""
        return self._require("the server's environment") / ".server-venv"

    @property
    def benchmark_script(self) -> Path:
        """The script that measures one run. Raises NoCheckout."""
        return self._require("the script that measures") / "scripts" / "benchmark.py"

    def _require(self, what: str) -> Path:
        if self.root is None:
            raise NoCheckout(
                f"{what} is part of a checkout of the kveval repository, and neither is {Path.cwd()} in one nor this"
                " kveval: go into a checkout that `bash scripts/setup.sh` has set up, or name it with --directory"
            )
        return self.root
