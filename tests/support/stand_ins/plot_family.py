"""A stand-in for the script that draws a family's figures: it draws none, and lists none."""

import json
from pathlib import Path

from kveval.report.figures.names import MANIFEST

if __name__ == "__main__":
    folder = Path(snakemake.output[0])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).write_text(
        json.dumps({"drawn": [], "lacking": {}, "left_out": {}})
    )
