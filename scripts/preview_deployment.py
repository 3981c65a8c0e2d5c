"""Write, for review, exactly what would be deployed for a cell."""

import json
from pathlib import Path

import yaml

from kveval.config.site import Cluster
from kveval.engines.kubernetes.manifests.rendering import preview_text
from kveval.spec.specification import Specification


def main(specification: str, measurement: str, site: str, campaign: str, output: str) -> None:
    """`specification`: what defines the measurement, JSON; `site`: the cluster, JSON, empty for this host."""
    content = json.loads(specification)
    if site:
        text = preview_text(Specification.from_json(content), Cluster.model_validate_json(site), campaign)
    else:
        text = yaml.safe_dump({"measurement": measurement, **content}, sort_keys=False, width=120)
    Path(output).write_text(text)


if __name__ == "__main__":
    params = snakemake.params
    main(params.specification, params.measurement, params.site, params.campaign, snakemake.output[0])
