"""The configuration from the command line; `python -m kveval.spec --schema > config/schema.json` is for editors."""

import json
import sys
from collections import Counter as Tally
from pathlib import Path

from kveval.config.json_schema import json_schema
from kveval.config.problems import ConfigError
from kveval.spec.loading import load_config
from kveval.spec.warnings import sentence


def main(arguments: list[str]) -> int:
    """Print the JSON schema, or check a campaign: `python -m kveval.spec --schema | CAMPAIGN CATALOGUES/`."""
    match arguments:
        case ["--schema"]:
            print(json.dumps(json_schema(), indent=2))
        case [campaign, directory]:
            try:
                config = load_config(Path(campaign), Path(directory))
            except ConfigError as error:
                print(error, file=sys.stderr)
                return 1
            counts = Tally(cell.scenario for cell in config.cells)
            if config.imports:
                trees = ", ".join(asked.path for asked in config.imports)
                print(f"{config.campaign.name}: imports {trees}")
                return 0
            if config.compared:
                print(f"{config.campaign.name}: compares {', '.join(entry.campaign for entry, _ in config.compared)}")
                return 0
            print(f"{config.campaign.name}: {len(config.cells)} cells x {config.campaign.runs} runs; {dict(counts)}")
            print("\n".join(f"note: {sentence(warning)}" for warning in config.warnings))
        case _:
            print(main.__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
