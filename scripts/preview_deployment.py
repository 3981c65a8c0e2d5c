"""Write, for review, exactly what would be deployed for a cell."""

from pathlib import Path

import yaml

from kveval.configuration.loading import load_config
from kveval.engines.kubernetes.preview import preview_text

if __name__ == "__main__":
    params = snakemake.params
    config = load_config(Path(params.campaign), Path(params.catalogues))
    specification = config.specification(config.cell(params.cell))
    campaign = config.campaign
    if campaign.cluster is not None:
        text = preview_text(specification, campaign.cluster, campaign.name)
    else:
        text = yaml.safe_dump({"measurement": params.measurement})
        text += yaml.safe_dump(specification.to_json(), width=120)
    Path(snakemake.output[0]).write_text(text)
