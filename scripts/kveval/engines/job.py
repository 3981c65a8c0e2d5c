"""One run of one cell, as the workflow asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kveval.campaign.builds import ArmBuild
from kveval.campaign.campaign_file import ExistingServer, PrometheusServer
from kveval.campaign.catalogue import KnownDefect
from kveval.campaign.site import Cluster
from kveval.campaign.specification import Specification
from kveval.host.errors import Failure


class MeasurementError(Failure):
    """The run failed; the message says why in one line and names the log."""


@dataclass(frozen=True)
class Job:
    """One run of one cell, and where things are on this host.

    `required`: the counters that its arm requires; `stall_limit_s`: seconds without a token, while requests
    wait or run, after which the server counts as hung; `secrets`: environment variables that only the server gets.
    """

    specification: Specification
    measurement: str
    run: int
    store: Path
    server_environment: Path
    """Folder of the Python environment with the load generator, and the server unless the arm names its own build."""
    build: ArmBuild | None = None
    required: Sequence[Mapping[str, Any]] = ()
    stall_limit_s: float = 60.0
    secrets: Sequence[str] = ("HF_TOKEN",)
    campaign: str = ""
    """The campaign's name, a label of its objects on a cluster."""
    site: Cluster | None = None
    """The cluster, for engine kubernetes."""
    existing: ExistingServer | None = None
    """What answers already, for engine existing."""
    prometheus: PrometheusServer | None = None
    """What scrapes already, asked once the run is over."""
    pointers: Sequence[Path] = ()
    """Paths of the pointers of all the campaign's runs; a run writes its pointer when it is measured."""
    known_defects: Mapping[str, KnownDefect] = field(default_factory=dict)
    """By name; a run that fails because of one of them is measured again."""

    @property
    def required_names(self) -> list[str]:
        """The names of the counters that its arm requires."""
        return [str(entry["counter"]) for entry in self.required]

    @property
    def label(self) -> str:
        """The run's name in messages."""
        return f"{self.specification.cell.path} run {self.run}"
