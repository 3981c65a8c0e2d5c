"""The sheets of results in the documented forms stay the same: of made-up trees every row, of published ones a digest.

KVEVAL_UPDATE_GOLDEN=1 holds the rows of the made-up trees that are made now; a digest is corrected by hand.
"""

import csv
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gates import golden
from tests.gates.campaigns import REAL_DATA, real_data
from tests.gates.library import write_import_sheet
from tests.support.guidellm_reports import START, Story
from tests.support.result_trees import (
    HOUR,
    LMCACHE,
    folder_name,
    native,
    write_campaign_tree,
    write_level,
    write_report,
)

HELD = Path(__file__).resolve().parent / "golden" / "sheets.tar.xz"
MODEL = "Qwen3-0.6B"
COLUMNS = (
    "use",
    "model",
    "scenario",
    "cpu_blocks",
    "run",
    "level",
    "report",
    "hardware",
    "software",
    "replicas",
    "tensor_parallel_size",
    "arm",
    "vllm",
    "problem",
    "guidellm",
    "start",
    "configuration",
    "remarks",
    "benchmark",
    "recording",
    "server_files",
)
# Tree below KVEVAL_TEST_DATA -> the names of its published reports, how many levels they have, a digest of their rows.
PUBLISHED = {"guidellm": ("oct2025-*.json", 30, "fa1d00f3da8f20ff")}


def rows_of(tree: Path, prefix: str = "") -> Iterator[dict[str, str]]:
    """Yield the rows of a tree's sheet without a prefix of paths, in the order of the sheet."""
    sheet = Path("imports.csv")
    sheet.unlink(missing_ok=True)
    write_import_sheet(tree, sheet)
    with sheet.open(newline="") as file:
        for row in csv.DictReader(file):
            yield {name: row[name].replace(prefix, "") for name in COLUMNS}


def text_of(rows: Iterator[dict[str, str]]) -> str:
    """Return rows as CSV."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def folders(root: Path) -> None:
    """Folders of a level: repetitions, copies, sizes, releases, parts of runs, and what is damaged or unknown."""
    write_campaign_tree(root / "plain", runs=2, rates=(1, 50, 500))
    copied = root / "plain" / "repetition-1" / folder_name(MODEL, "no-offload", 50)
    shutil.copytree(copied, root / "copies" / copied.name)
    starts = (START + HOUR * number for number in range(100, 200))

    def level(
        place: str, arm: str, rate: int, model: str = MODEL, **options: Any
    ) -> Path:
        values = {"archive": False, "start": next(starts), **options}
        return write_level(root / place, model, arm, rate, **values)

    lmcache = f"--kv-transfer-config '{LMCACHE}'"
    env = "LMCACHE_MAX_LOCAL_CPU_SIZE=4.0"
    level("sizes", "lmcache-local-20kcpu", 1, args=lmcache, env=env, model="Qwen3-8B")
    level("sizes", "native-offload-20k", 1, args=native(10_000), model="Qwen3-8B")
    level("sizes", "native-offload-10k", 1, model="Qwen3-8B")
    level("sizes", "lmcache-redis-10k", 1, config={"vLLM Extra Args": None})
    level("alike", "no-offload", 1, model="Qwen3-14B", log=False)
    level("alike", "llm-d-redis", 1, model="Qwen3-14B", log=False)
    pressure = {"software": "upstream-llm-d-0.4.0-mempress"}
    low = {"GPU_Memory_Utilization": 0.55}
    level("pressure", "no-offload", 1, **pressure, config=low)
    level("pressure", "no-offload", 4, **pressure)
    for release in ("llm-d-0.5.0", "llm-d-0.6.0"):
        level("releases", "lmcache-valkey", 4, software=release)
    level("parts/low", "fs-offload", 1)
    level("parts/low", "fs-offload", 4)
    level("parts/high", "fs-offload", 8)
    level("parts/other", "fs-offload", 16, args="--max-num-seqs 8")
    level("unknown", "quantum-10k", 1)
    level("unknown", "no-offload", 1, model="Qwen9-1B")
    other = {"Rate_(Concurrency)": 500, "Replicas": 2, "Parameters": "a", "Run_ID": "b"}
    level("unlike", "llm-d-valkey", 50, streams=5, config=other, layers=2)
    level("damaged", "llm-d-valkey", 5, config={"EPP_Backend": "valkey"})
    for rate in (50, 500):
        folder = level(
            "damaged", "llm-d-valkey", rate, config={"EPP_Backend": "valkey"}
        )
        report = folder / "guidellm-results.json.zst"
        report.write_bytes(report.read_bytes()[:-3] if rate == 50 else b"")
    (level("damaged", "lmcache-local", 1) / "guidellm-results.json.zst").unlink()
    (root / "damaged" / "analysis").mkdir()
    level("damaged", "no-offload-mempress", 4, latency_s=90.0, keep=0)


def dated(root: Path) -> None:
    """Dated reports, some of them beside archives of the same name."""
    names = (
        (f"{MODEL}_native-offload-10k_rate4", 4),
        (f"{MODEL}_native-offload-10k_rate4", 4),
        (f"{MODEL}_native-offload-10k_rate8", 8),
        ("no-offload", 4),
        (f"1x2xL4_vllm-0.11-mempress_{MODEL}_no-offload_replica2_rate5", 5),
    )
    for number, (name, streams) in enumerate(names):
        stem = f"benchmark_2025110{number + 1}_120000_{name}"
        story = Story(streams=streams, start=START + number * HOUR)
        report = root / f"{stem}_guidellm.json{'.zst' * (number % 2)}"
        write_report(report, [story], layers=number % 2, generation="0.4")
        if number != 1:
            (root / f"{stem}_pcp.tar.xz").write_bytes(b"an archive")
    empty = f"benchmark_20251108_120000_{MODEL}_native-offload-10k_rate50"
    (root / f"{empty}_guidellm.json").write_bytes(b"")


def october(root: Path) -> None:
    """Sweeps of October 2025 beside a recording of all of them."""
    stories = [
        Story(strategy="synchronous", streams=1),
        Story(strategy="throughput", start=START + 100),
        Story(strategy="constant", rate=4.0, streams=4, start=START + 200),
        Story(strategy="constant", rate=2.0, streams=4, start=START + 300),
    ]
    for arm in ("default", "offload", "lmcache"):
        report = root / f"oct2025-{MODEL}-{arm}.json"
        write_report(report, stories, layers=0, generation="0.3", keep=0)
    (root / "pcp-archives" / "node").mkdir(parents=True)
    (root / "all_pcp.tar.xz").write_bytes(b"an archive")


TREES: tuple[Callable[[Path], None], ...] = (folders, dated, october)


def test_made_up_trees_have_the_rows_that_they_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {}
    for make in TREES:
        make(Path(make.__name__))
        texts[f"{make.__name__}.csv"] = text_of(rows_of(Path(make.__name__)))
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        golden.write_archive(HELD, texts)
    if said := golden.difference(golden.read_archive(HELD), texts):
        pytest.fail(said, pytrace=False)


@real_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_trees_have_the_rows_that_they_had(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert REAL_DATA is not None
    data = Path(REAL_DATA).resolve()
    monkeypatch.chdir(tmp_path)
    reports, levels, digest = PUBLISHED[name]
    rows = [
        row
        for row in rows_of(data / name, f"{data}/")
        if Path(row["report"]).match(reports)
    ]
    assert len(rows) == levels
    text = text_of(iter(rows))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest, text
