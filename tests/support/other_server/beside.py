"""All that is known of a program beside a server: a shelf, in a pod of its own on a cluster.

Tests enter it in the registry, and give it to the arms of the server in adapter.py beside this file.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from kveval.campaign.catalogue import Scenario
from kveval.campaign.sizing import Budget, CacheSizes
from kveval.campaign.specification import SidecarSpec
from kveval.stacks.arms import ArmArguments, Platform
from kveval.stacks.sidecar import HttpSidecar, Port


class Shelf(HttpSidecar):
    """A program that keeps what the server brings."""

    name = "shelf"
    title = "Shelf"
    executable = "shelfd"
    replaceable = frozenset({"--order"})
    ports: ClassVar[Mapping[str, Port]] = {"shelf_port": Port(7000, "shelf")}
    metrics_port = "shelf_port"
    health_path = "/open"

    @classmethod
    def memory_bytes(cls, argv: Sequence[str], sizes: CacheSizes) -> int:
        return 2 * int(argv[argv.index("--room") + 1])

    def identify(self, versions: Mapping[str, str]) -> None:
        self.version = self._fetch("/release").decode()

    def counters(self) -> dict[str, float]:
        return {"shelf_things": float(self._fetch("/count"))}


def shelved(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    """The arm of a server whose tier is a shelf."""
    line = ["shelfd", "--port", "{shelf_port}", "--order", "old"]
    shelf = SidecarSpec(Shelf.name, (*line, "--room", str(budget.tier_bytes)))
    address = "{shelf_host}:{shelf_port}"
    return ArmArguments(("--shelf", address), sidecars=(shelf,))
