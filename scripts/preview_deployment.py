"""Write, for review, exactly what would be deployed for a cell."""

import json
from pathlib import Path

import yaml

from kveval.campaign.site import Cluster
from kveval.campaign.specification import Specification
from kveval.engines.kubernetes.manifests.rendering import preview_text

if __name__ == "__main__":
    params = snakemake.params
    content = json.loads(params.specification)
    if params.site:
        site = Cluster.model_validate_json(params.site)
        text = preview_text(Specification.from_json(content), site, params.campaign)
    else:
        text = yaml.safe_dump(
            {"measurement": params.measurement, **content}, sort_keys=False, width=120
        )
    Path(snakemake.output[0]).write_text(text)
