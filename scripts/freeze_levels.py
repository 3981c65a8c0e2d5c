"""Write the levels that a pilot found; every arm of its model is then measured at them."""

from pathlib import Path

from kveval.analysis.levels.pilot import freeze

if __name__ == "__main__":
    freeze(Path(snakemake.input.pointer), Path(snakemake.output[0]))
