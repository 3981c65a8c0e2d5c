"""Warnings of what can be measured on a cluster but will not show what it seems to."""

from collections.abc import Mapping

from kveval.config.campaign import Campaign, Cell
from kveval.config.catalogue import Catalogue
from kveval.spec.deployment import replicas


def cluster_warnings(
    campaign: Campaign, catalogue: Catalogue, images: Mapping[Cell, str | None], baselines: Mapping[Cell, Cell | None]
) -> list[str]:
    """Return a line for each arm of another build than its baseline, each idle index, and each uneven load.

    `images`: the server's image of every cell of the matrix; `baselines`: what it is compared with.
    """
    if campaign.cluster is None:
        return []
    found = [
        f"{cell.path} runs {image}, its baseline {images[baseline]}: their comparison is confounded"
        for cell, image in images.items()
        if (baseline := baselines[cell]) is not None and images.get(baseline, image) != image
    ]
    for name in dict.fromkeys(cell.scenario for cell in images):
        scenario = catalogue.scenarios[name]
        servers = replicas(scenario, campaign.server)
        if "index" in scenario.kind.parts and servers == 1:
            found.append(f"{name} routes between replicas, and there is one: it cannot differ from its baseline")
        if campaign.cluster.address != "gateway" and servers > 1:
            found.append(
                f"{name} has {servers} replicas behind a Service, which spreads connections, not requests:"
                " use address: gateway"
            )
    return found
