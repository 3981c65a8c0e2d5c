"""The kinds of KV-cache arms: the parts of each, the keys its scenarios need, and where the report shows it.

A new kind is an entry here, a scenario in config/scenarios.yaml, and a function in the `arms` of the server that can
run it (kveval.spec.servers).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kveval.config.problems import Mistake

Part = Literal["native", "lmcache", "files", "index"]
"""The server's own tier in host memory, LMCache, files as the last tier, an index of KV blocks for routing."""
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
    "native": ArmKind(frozenset({"native"}), "offload", True, "none", ("native-offload",)),
    "lmcache": ArmKind(
        frozenset({"lmcache"}), "offload", True, "optional", ("lmcache-local", "lmcache-redis", "lmcache-valkey")
    ),
    "llm-d-index": ArmKind(frozenset({"index"}), "indexing", None, "required", ("llm-d-redis", "llm-d-valkey")),
    "files": ArmKind(frozenset({"files"}), "offload", None, "none", ("fs-offload", "cpu+fs-offload")),
    "hybrid": ArmKind(frozenset({"native", "lmcache"}), "offload", True, "optional", ("hybrid",)),
}


def kinds_of(section: Section) -> tuple[str, ...]:
    """Return the names of the kinds in a section of the report."""
    return tuple(name for name, kind in ARM_KINDS.items() if kind.section == section)


def rules_broken(arm: str, scenario: Mapping[str, object]) -> Iterator[Mistake]:
    """Yield the mistakes in a scenario's keys: those that its kind of arm needs but lacks, or must not have."""
    kind = ARM_KINDS[arm]
    if kind.cpu_tier is not None and kind.cpu_tier != scenario["cpu_tier"]:
        has = "a" if kind.cpu_tier else "no"
        yield Mistake(f"arm {arm} has {has} CPU tier: cpu_tier must be {str(kind.cpu_tier).lower()}", "cpu_tier")
    if kind.store == "none" and scenario["store"] is not None:
        users = [name for name, other in ARM_KINDS.items() if other.store != "none"]
        yield Mistake(f"arm {arm} uses no store; {', '.join(users[:-1])} and {users[-1]} do", "store_not_used")
    if scenario["form"] != "connector" and kind.parts != {"native"}:
        yield Mistake(f"form {scenario['form']} is only for arm native", "form_of_native")
    if scenario["native_share"] is not None and not kind.shares_budget:
        said = f"arm {arm} has no two tiers that share a budget: native_share is only for arm hybrid"
        yield Mistake(said, "share_of_hybrid")
    if kind.store == "required" and scenario["store"] is None:
        yield Mistake(f"arm {arm} needs store: redis or valkey", "store_missing")
    if not kind.parts and scenario["connector_config"]:
        yield Mistake(f"arm {arm} has no connector to configure", "no_connector")
    if kind.parts and not scenario["exercised"]:
        said = "exercised is empty: name a counter that must rise, or nothing proves that the arm was active"
        yield Mistake(said, "exercised_empty")
