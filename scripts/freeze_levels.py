"""Write the levels that a pilot found; every arm of its model is then measured at them."""

import argparse
from pathlib import Path

from kveval.tables.levels.pilot import freeze

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pointer", type=Path, help="the pilot's measurement.json")
    parser.add_argument("output", type=Path, help="levels.json")
    options = parser.parse_args()
    freeze(options.pointer, options.output)
