"""One run of a cell on a cluster: whose objects these are, where they are, and how its pods are found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.names import selector
from kveval.engines.kubernetes.manifests.context import RenderContext
from kveval.engines.kubernetes.wait.diagnosis import Patience


@dataclass(frozen=True)
class RunContext(RenderContext):
    """A run's place on a cluster: what its documents are made of, and the way to the API server."""

    api: Api

    @property
    def namespace(self) -> str:
        """Where everything but the recorder is."""
        return self.site.namespace

    @property
    def patience(self) -> Patience:
        """How long its pods may be without a node."""
        return Patience(unschedulable_s=self.site.schedule_timeout_s)

    def selector(self, component: str | None = None) -> str:
        """Return what selects this run's objects, of one component or all."""
        return selector(self.campaign, self.cell, self.run, component=component)


def component_of(pod: Mapping[str, Any]) -> str:
    """Return what a pod is for."""
    return str((pod["metadata"].get("labels") or {}).get("kveval.dev/component", ""))
