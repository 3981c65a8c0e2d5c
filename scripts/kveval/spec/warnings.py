"""Warnings of what can be measured on a cluster but will not show what it seems to."""

from collections.abc import Mapping
from typing import Any

from kveval.config.campaign import Campaign, Cell
from kveval.config.catalogue import Catalogue
from kveval.host.findings import Finding, warning
from kveval.spec.deployment import replicas


def cluster_warnings(
    campaign: Campaign, catalogue: Catalogue, images: Mapping[Cell, str | None], baselines: Mapping[Cell, Cell | None]
) -> list[Finding]:
    """Return a warning for each arm of another build than its baseline, each idle index, and each uneven load.

    `images`: the server's image of every cell of the matrix; `baselines`: what it is compared with.
    """
    if campaign.cluster is None:
        return []
    found = [
        noted(
            f"{cell.path} runs {image}, its baseline {images[baseline]}: their comparison is confounded",
            "other_image",
            cell=cell.path,
            images=(image, images[baseline]),
        )
        for cell, image in images.items()
        if (baseline := baselines[cell]) is not None and images.get(baseline, image) != image
    ]
    for name in dict.fromkeys(cell.scenario for cell in images):
        scenario = catalogue.scenarios[name]
        servers = replicas(scenario, campaign.server)
        if "index" in scenario.kind.parts and servers == 1:
            said = f"{name} routes between replicas, and there is one: it cannot differ from its baseline"
            found.append(noted(said, "one_replica", scenario=name))
        if campaign.cluster.address != "gateway" and servers > 1:
            said = f"{name} has {servers} replicas behind a Service, which spreads connections, not requests:"
            found.append(noted(f"{said} use address: gateway", "connections_spread", scenario=name))
    return found


def noted(text: str, code: str, **facts: Any) -> Finding:
    """Return what is to be said of a campaign; see Finding."""
    return warning("configuration", text, "", code, **facts)
