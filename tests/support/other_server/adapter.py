"""All that is known of a server that is not vLLM: other paths, other counters, other flags.

Tests put it into a copy of the library and enter it in both registries.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kveval.campaign.arms import ArmArguments, Platform
from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import Scenario
from kveval.campaign.servers.software import ServerSoftware
from kveval.campaign.sizing import Budget
from kveval.campaign.specification import ServedModel, Specification
from kveval.engines.servers.protocol import Ask, Completion
from kveval.host.logs import LogForm


def common_arguments(
    model: ServedModel, server: ServerConfig, engine: str
) -> tuple[str, ...]:
    return (
        "--weights",
        "{model_dir}",
        "--name",
        model.served_name,
        "--listen",
        "{port}",
    )


def common_environment(model: ServedModel, server: ServerConfig) -> dict[str, str]:
    return {"TOY_CACHE_TOKENS": str(server.device_tokens)}


def no_tier(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    return ArmArguments()


def own_tier(scenario: Scenario, platform: Platform, budget: Budget) -> ArmArguments:
    return ArmArguments(("--tier-bytes", str(budget.tier_bytes)))


def startup_facts(log_text: str) -> dict[str, Any]:
    facts = {}
    if match := re.search(r"room for (\d+) tokens", log_text):
        facts["kv_cache_tokens"] = int(match[1])
    if match := re.search(r"tier of (\d+) B", log_text):
        facts["tier_bytes"] = int(match[1])
    return facts


TOY = ServerSoftware(
    name="toy",
    title="Toy",
    prefix="toy_",
    metrics={
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
    },
    common_arguments=common_arguments,
    common_environment=common_environment,
    arms={"none": no_tier, "native": own_tier},
    arm_flags=frozenset({"--tier-bytes"}),
    flags_per_start=frozenset({"--listen"}),
    startup_facts=startup_facts,
)


class ToyProgram:
    """The behaviour of server.py beside this file."""

    software = TOY
    health_path = "/healthz"
    model_path = "/about"
    metrics_path = "/stats"
    log_form = LogForm(telling=re.compile("^ouch"))
    plugins: Path | None = None

    def command(self, environment: Path) -> list[str]:
        return [str(environment / "bin" / "python"), "-m", "toy.serving"]

    def container_command(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        return ["toy"], list(argv)

    def distributions(self, build: str) -> Sequence[str]:
        return ["toy"]

    def is_part(self, title: str) -> bool:
        return False

    def publishes_events(self, argv: Sequence[str]) -> bool:
        return False

    def shared_memory_bytes(self, specification: Specification) -> int:
        return 0

    def version(self, ask: Ask) -> str:
        return str(ask("/about")["release"])

    def models(self, ask: Ask) -> list[str]:
        return [str(ask("/about")["serving"])]

    def generated(
        self, ask: Ask, served_model: str, prompt_tokens: int, timeout_s: float
    ) -> int:
        return int(ask("/say", "POST", {"length": prompt_tokens}, timeout_s)["said"])

    def completed(
        self, ask: Ask, served_model: str, prompt: str, tokens: int, likeliest: int
    ) -> Completion | None:
        return None

    def emptied(self, ask: Ask, *, tiers: bool = True) -> bool:
        return bool(ask("/caches", "DELETE")["empty"])
