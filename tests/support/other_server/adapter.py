"""All that is known of a server that is not vLLM: other paths, other counters, other flags.

Tests put it into a copy of the library and enter it in the registry.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import Scenario
from kveval.campaign.sizing import Budget
from kveval.campaign.specification import ServedModel
from kveval.host.logs import LogForm
from kveval.stacks.arms import ArmArguments, Platform
from kveval.stacks.model_server import Arm, ModelServer
from kveval.stacks.settings import ServerSettings
from kveval.stacks.talk import Ask


def no_tier(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    return ArmArguments()


def own_tier(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    return ArmArguments(("--tier-bytes", str(budget.tier_bytes)))


class Toy(ModelServer):
    """The server of server.py beside this file."""

    name = "toy"
    title = "Toy"
    prefix = "toy_"
    metrics: ClassVar[dict[str, dict[str, str]]] = {
        "generation_tokens": {"*": "toy_generated_tokens_total"},
        "requests_running": {"*": "toy_requests_active"},
        "requests_waiting": {"*": "toy_requests_queued"},
        "kv_cache_usage": {"*": "toy_cache_fill_ratio"},
        "prefix_cache_queries": {"*": "toy_looked_up_tokens_total"},
        "prefix_cache_hits": {"*": "toy_found_tokens_total"},
        "external_prefix_cache_hits": {"1.0": "toy_tier_found_tokens_total"},
        "offload_load_bytes": {
            "2.0": "toy_fetched_bytes_total",
            "1.0": 'toy_moved_bytes_total{way="in"}',
        },
    }
    arms: ClassVar[dict[str, Arm]] = {"none": no_tier, "native": own_tier}
    arm_flags = frozenset({"--tier-bytes"})
    flags_per_start = frozenset({"--listen"})
    settings = ServerSettings(kinds={"--listen": "unrelated"})
    health_path = "/healthz"
    model_path = "/about"
    metrics_path = "/stats"
    log_form = LogForm(telling=re.compile("^ouch"))

    def common_arguments(
        self, model: ServedModel, server: ServerConfig, engine: str
    ) -> tuple[str, ...]:
        named = ("--name", model.served_name)
        return ("--weights", "{model_dir}", *named, "--listen", "{port}")

    def common_environment(
        self, model: ServedModel, server: ServerConfig
    ) -> dict[str, str]:
        return {"TOY_CACHE_TOKENS": str(server.device_tokens)}

    def command(self, environment: Path) -> list[str]:
        return [str(environment / "bin" / "python"), "-m", "toy.serving"]

    def container_command(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        return ["toy"], list(argv)

    def distributions(self, build: str) -> Sequence[str]:
        return ["toy"]

    def startup_facts(self, log_text: str) -> dict[str, Any]:
        facts = {}
        if match := re.search(r"room for (\d+) tokens", log_text):
            facts["kv_cache_tokens"] = int(match[1])
        if match := re.search(r"tier of (\d+) B", log_text):
            facts["tier_bytes"] = int(match[1])
        return facts

    def version(self, ask: Ask) -> str:
        return str(ask("/about")["release"])

    def models(self, ask: Ask) -> list[str]:
        return [str(ask("/about")["serving"])]

    def generated(
        self, ask: Ask, served_model: str, prompt_tokens: int, timeout_s: float
    ) -> int:
        return int(ask("/say", "POST", {"length": prompt_tokens}, timeout_s)["said"])

    def emptied(self, ask: Ask, *, tiers: bool = True) -> bool:
        return bool(ask("/caches", "DELETE")["empty"])
