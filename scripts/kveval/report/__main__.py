"""The JSON schema of report.json: `python -m kveval.report --schema > docs/report.schema.json`."""

import sys

from kveval.report.result.model import schema_text

if __name__ == "__main__":
    if sys.argv[1:] != ["--schema"]:
        sys.exit(__doc__)
    print(schema_text(), end="")
