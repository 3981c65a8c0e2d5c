"""One run of one cell, as the workflow asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kveval.config.catalogue import KnownDefect
from kveval.config.site import Cluster
from kveval.host.errors import Failure
from kveval.spec.builds import ArmBuild
from kveval.spec.specification import Specification


class MeasurementError(Failure):
    """The run failed; the message says why in one line and names the log."""


@dataclass(frozen=True)
class Job:
    """One run of one cell, and where things are on this host.

    `required`: the counters that prove the arm active; `stall_limit_s`: seconds without a token, requests in work,
    after which the server counts as hung; `secrets`: environment variables the server gets and nothing else may show.
    """

    specification: Specification
    measurement: str
    run: int
    store: Path
    server_environment: Path
    """What is installed: it has the load generator, and the server unless the arm names its own build."""
    build: ArmBuild | None = None
    required: Sequence[Mapping[str, Any]] = ()
    stall_limit_s: float = 60.0
    secrets: Sequence[str] = ("HF_TOKEN",)
    campaign: str = ""
    """Its name, which the objects on a cluster bear."""
    site: Cluster | None = None
    """The cluster, for engine kubernetes."""
    pointers: Sequence[Path] = ()
    """What the campaign's runs will have written when all are measured."""
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict)
    """By name: a run that one of them ends is measured again."""

    @property
    def label(self) -> str:
        """The run as people say it."""
        return f"{self.specification.cell.path} run {self.run}"
