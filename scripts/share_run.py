"""Copy a run of the measurement store to where jobs that do not see this machine's folders can read it."""

from pathlib import Path

from kveval.workflow.upkeep.sharing import share_run

if __name__ == "__main__":
    share_run(Path(snakemake.input[0]), *map(Path, snakemake.output))
