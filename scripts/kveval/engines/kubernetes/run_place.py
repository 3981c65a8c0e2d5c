"""One run of a cell on a cluster: whose objects these are, where they are, and how its pods are found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kveval.config.site import Cluster
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.names import labels, object_name, selector
from kveval.spec.specification import Specification


@dataclass(frozen=True)
class RunContext:
    """A run's place on a cluster.

    `ports`: by placeholder, where the run's servers listen; `measurement`: the id of what is measured.
    """

    api: Api
    site: Cluster
    campaign: str
    specification: Specification
    measurement: str
    run: int
    ports: Mapping[str, int]

    @property
    def namespace(self) -> str:
        """Where everything but the recorder is."""
        return self.site.namespace

    @property
    def cell_path(self) -> str:
        """The cell as a path."""
        return self.specification.cell.path

    def labels(self, component: str) -> dict[str, str]:
        """Return the labels of an object of this run."""
        return labels(self.campaign, self.cell_path, self.run, self.measurement, component)

    def selector(self, component: str | None = None) -> str:
        """Return what selects this run's objects, of one component or all."""
        return selector(self.campaign, self.cell_path, self.run, component=component)

    def name(self, component: str) -> str:
        """Return the name of this run's object of one component."""
        return object_name(self.cell_path, self.run, component, self.campaign)


def component_of(pod: Mapping[str, Any]) -> str:
    """Return what a pod is for."""
    return str((pod["metadata"].get("labels") or {}).get("kveval.dev/component", ""))
