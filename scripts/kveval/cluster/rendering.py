"""Everything a cell needs on the cluster, as plain documents: a pure function of its specification and of the site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveval.config_cluster import Cluster

Document = dict[str, Any]

PORTS: Mapping[str, int] = {
    "port": 8000,
    "redis_port": 6379,
    "valkey_port": 6379,
    "lmcache_port": 5555,
    "lmcache_http_port": 8081,
    "events_port": 5556,
    "epp_port": 9002,
    "epp_health_port": 9003,
    "epp_metrics_port": 9090,
}
"""Ports by placeholder. Pods of their own address use these; where all share one network, others are handed in."""


@dataclass(frozen=True)
class Rendered:
    """The documents of one run of a cell.

    `storage`: claims that are kept between cells; `serving`: the servers and what routes to them; `gateway`: the
    Gateway, where the campaign has it made.
    """

    storage: tuple[Document, ...]
    serving: tuple[Document, ...]
    gateway: tuple[Document, ...] = ()

    @property
    def documents(self) -> tuple[Document, ...]:
        """All of them, in the order in which they are applied."""
        return (*self.storage, *self.gateway, *self.serving)


def render(
    specification: Mapping[str, Any], site: Cluster, run: int, campaign: str, ports: Mapping[str, int] = PORTS
) -> Rendered:
    """Return the documents of one run of a cell. `ports`: every port of PORTS, as this run has them."""
    raise NotImplementedError


def recording_documents(campaign: str, site: Cluster, endpoints: Mapping[str, str]) -> tuple[Document, ...]:
    """Return the recorder of a campaign: its namespace, one pod a node, and what they read. `endpoints`: name -> URL."""
    raise NotImplementedError


def load_job(
    specification: Mapping[str, Any],
    site: Cluster,
    run: int,
    campaign: str,
    level: int,
    argv: Sequence[str],
    env: Mapping[str, str],
) -> Document:
    """Return the Job that runs the load generator for the level of this index; its report goes to the results volume."""
    raise NotImplementedError


def download_job(specification: Mapping[str, Any], site: Cluster, run: int, campaign: str) -> Document:
    """Return the Job that downloads the model's weights into the model cache."""
    raise NotImplementedError


def collector_pod(specification: Mapping[str, Any], site: Cluster, run: int, campaign: str) -> Document:
    """Return the pod from which the files of the results volume are read."""
    raise NotImplementedError
