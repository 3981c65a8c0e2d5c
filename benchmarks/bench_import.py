"""Time and memory of importing an existing result tree, the first and the second time.

python benchmarks/bench_import.py [--folders 1700] [--requests 1000] [--folder DIR] [--keep] [--workflow]

Makes a tree of the newest form - four models, seven arms, eight levels, repetitions - with a report, an archive, a
start-up log and benchmark-config.txt in every folder, and times: the first plan (every report is read), the next one
(nothing is), importing every run into a store, and finding them there again. With --workflow also Snakemake: planning,
importing with all cores, and the plan after it.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from benchmarks.support import snakemake  # noqa: E402
from tests.support.fault_chain import workflow_copy  # noqa: E402
from tests.support.guidellm_reports import START  # noqa: E402
from tests.support.result_trees import LMCACHE, native, write_level  # noqa: E402

from kveval.configuration.loading import load_catalogue, load_config  # noqa: E402
from kveval.plugins.imports.plan import import_plan  # noqa: E402
from kveval.plugins.imports.run import import_run  # noqa: E402
from kveval.plugins.imports.sheet import update_sheet  # noqa: E402
from kveval.store.store import Store  # noqa: E402

MODELS = ("Qwen3-0.6B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B-AWQ")
OFFLOAD, CACHE = native(10_000), f"--kv-transfer-config '{LMCACHE}'"
ARMS = {
    **{
        "no-offload": "",
        "native-offload-10k": OFFLOAD,
        "lmcache-local": CACHE,
        "lmcache-redis": CACHE,
    },
    **{
        "lmcache-valkey": CACHE,
        "llm-d-redis": "",
        "llm-d-valkey": "--enable-prefix-caching",
    },
}
LEVELS = (1, 50, 100, 200, 300, 400, 500, 650)


def write_tree(root: Path, folders: int, requests: int) -> None:
    """Write the tree; every report holds about `requests` records, whatever its level."""
    made = 0
    for repetition in range(folders):
        for model in MODELS:
            for arm, args in ARMS.items():
                for level in LEVELS:
                    if made == folders:
                        return
                    each = max(1, requests // level)
                    story = {
                        "seconds": 120.0,
                        "latency_s": min(60.0, 119.0 / each),
                        "start": START + 300.0 * made,
                    }
                    write_level(
                        root / f"repetition-{repetition + 1}",
                        model,
                        arm,
                        level,
                        args=args,
                        step=10.0,
                        **story,
                    )
                    made += 1


def timed(what: str, work: Callable[[], Any]) -> Any:
    """Run something and print how long it took."""
    begin, busy = time.perf_counter(), time.process_time()
    result = work()
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{what:58} {seconds:8.1f} s ({busy:.1f} s processor), peak {peak:.0f} MiB",
        flush=True,
    )
    return result


def size_of(folder: Path) -> tuple[int, int]:
    """Number of files and bytes below a folder, links not followed."""
    files = [
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
    ]
    return len(files), sum(path.stat().st_size for path in files)


def bench_library(folder: Path) -> None:
    """Time the sheet, planning and importing in this process."""
    catalogues, sheet = ROOT / "config", folder / "imports.csv"
    sheet.unlink(missing_ok=True)
    store, trees = Store(folder / "store"), [folder / "tree"]
    catalogue = load_catalogue(catalogues)
    timed("the sheet: every report", lambda: update_sheet(trees, sheet, catalogue))
    timed("the sheet again: no row", lambda: update_sheet(trees, sheet, catalogue))
    values = {"name": "bench", "import": str(sheet)}
    config = timed(
        "the campaign: the sheet, and the beginning of every report",
        lambda: load_config(values, catalogues),
    )
    planned = timed("the plan: sizes and times", lambda: import_plan(config))
    print(f"  {planned.summary}; sheet {sheet.stat().st_size / 1e6:.1f} MB")

    def import_all() -> None:
        for number, run in enumerate(planned.runs):
            import_run(run, store, folder / "pointers" / f"{number}.json")

    timed(f"importing {len(planned.runs)} runs, one after the other", import_all)
    count, size = size_of(folder / "store")
    print(f"  store: {count} files, {size / 1e6:.1f} MB of its own")
    timed("importing them again: checksums verified, adopted", import_all)


def bench_workflow(folder: Path) -> None:
    """Time the same through Snakemake, in a copy of the workflow."""
    copy = workflow_copy(folder / "workflow")
    campaign = {
        "name": "bench",
        "results": "results/campaigns/bench",
        "import": str(folder / "imports.csv"),
    }
    (copy / "bench.yaml").write_text(yaml.safe_dump(campaign))

    options = ("--cores", str(os.cpu_count()), "--configfile", "bench.yaml")
    # Every run, and nothing that is made of them.
    runs = (*options, "--until", "import_run", "--", "report")
    timed("snakemake -n", lambda: snakemake(copy, "-n", *runs))
    timed("snakemake: importing", lambda: snakemake(copy, *runs))
    timed("snakemake again: nothing to be done", lambda: snakemake(copy, *runs))


def main() -> None:
    """Make the tree, measure, clean up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folders", type=int, default=1700)
    parser.add_argument(
        "--requests", type=int, default=1000, help="records in a report, about"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the tree is made (and found again with --keep)",
    )
    parser.add_argument("--keep", action="store_true", help="leave everything")
    parser.add_argument("--workflow", action="store_true", help="time Snakemake, too")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="bench-import-"))
    if not (folder / "tree").exists():
        timed(
            "making the tree",
            lambda: write_tree(folder / "tree", options.folders, options.requests),
        )
    count, size = size_of(folder / "tree")
    print(f"  {options.folders} result folders: {count} files, {size / 1e6:.1f} MB")
    bench_library(folder)
    if options.workflow:
        bench_workflow(folder)
    if not options.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
