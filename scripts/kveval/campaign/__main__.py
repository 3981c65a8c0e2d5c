"""The JSON schema of the configuration, for editors: `python -m kveval.campaign --schema > config/schema.json`."""

import json
import sys

from kveval.campaign.json_schema import json_schema

if __name__ == "__main__":
    if sys.argv[1:] != ["--schema"]:
        sys.exit(__doc__)
    print(json.dumps(json_schema(), indent=2))
