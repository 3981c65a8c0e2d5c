"""The kinds of KV-cache arms: the parts of each, the keys its scenarios need, and where the report shows it.

A new kind is an entry here, a scenario in config/scenarios.yaml, and a function in the `arms` of the server that can
run it (kveval.stacks).
"""

from dataclasses import dataclass
from typing import Literal

Part = Literal["native", "lmcache", "files", "index", "verbatim"]
"""The server's own tier in host memory, LMCache, files as the last tier, an index of KV blocks for routing, a connector
that the scenario gives as it is.
"""
Section = Literal["baseline", "offload", "indexing"]


@dataclass(frozen=True)
class ArmKind:
    """The properties that all arms of a kind share.

    Attributes:
        parts: the parts of the arm; empty if it has only the device's own cache.
        section: section of the report that compares its arms with their baselines.
        cpu_tier: whether it has a tier in host memory; None if each scenario decides.
        store: whether it uses a store such as Redis.
        arms: its scenarios in the order of tables and figures; others of the kind come last, by name.
    """

    parts: frozenset[Part]
    section: Section
    cpu_tier: bool | None
    store: Literal["none", "optional", "required"]
    arms: tuple[str, ...]

    @property
    def shares_budget(self) -> bool:
        """Whether two tiers in host memory share one budget."""
        return self.parts >= {"native", "lmcache"}


ARM_KINDS: dict[str, ArmKind] = {
    "none": ArmKind(frozenset(), "baseline", False, "none", ("no-offload",)),
    "native": ArmKind(
        frozenset({"native"}), "offload", True, "none", ("native-offload",)
    ),
    "lmcache": ArmKind(
        frozenset({"lmcache"}),
        "offload",
        True,
        "optional",
        ("lmcache-local", "lmcache-redis", "lmcache-valkey"),
    ),
    "llm-d-index": ArmKind(
        frozenset({"index"}),
        "indexing",
        None,
        "required",
        ("llm-d-redis", "llm-d-valkey"),
    ),
    "files": ArmKind(
        frozenset({"files"}), "offload", None, "none", ("fs-offload", "cpu+fs-offload")
    ),
    "hybrid": ArmKind(
        frozenset({"native", "lmcache"}), "offload", True, "optional", ("hybrid",)
    ),
    # Every arm of this kind is somebody's own.
    "verbatim": ArmKind(frozenset({"verbatim"}), "offload", None, "none", ()),
}


def kinds_of(section: Section) -> tuple[str, ...]:
    """Return the names of the kinds in a section of the report."""
    return tuple(name for name, kind in ARM_KINDS.items() if kind.section == section)
