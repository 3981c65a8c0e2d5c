"""Copy a figure out of its family's folder to where it is asked for by name."""

import shutil
from pathlib import Path

from kveval.report.figures.names import drawn_figure

if __name__ == "__main__":
    shutil.copyfile(
        drawn_figure(Path(snakemake.input[0]), Path(snakemake.output[0]).name),
        snakemake.output[0],
    )
