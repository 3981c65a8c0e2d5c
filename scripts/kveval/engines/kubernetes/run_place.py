"""One run of a cell on a cluster: the labels of its objects, its namespace, and the selector of its pods."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.names import selector
from kveval.engines.kubernetes.manifests.context import RenderContext
from kveval.engines.kubernetes.wait.diagnosis import Patience


@dataclass(frozen=True)
class RunContext(RenderContext):
    """A run on a cluster: the values that its documents are rendered from, and the client of the API server."""

    api: Api

    @property
    def namespace(self) -> str:
        """The namespace of everything except the recorder."""
        return self.site.namespace

    @property
    def patience(self) -> Patience:
        """How long its pods may wait for a node."""
        return Patience(unschedulable_s=self.site.schedule_timeout_s)

    def selector(self, component: str | None = None) -> str:
        """Return the label selector of this run's objects, of one component or of all."""
        return selector(self.campaign, self.cell, self.run, component=component)


def component_of(pod: Mapping[str, Any]) -> str:
    """Return the component label of a pod or document, such as `model-server`; "" without one."""
    return str((pod["metadata"].get("labels") or {}).get("kveval.dev/component", ""))
