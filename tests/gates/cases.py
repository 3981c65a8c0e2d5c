"""The commands whose text is held, and makes it: `python -m tests.gates.cases FINISHED FOLDER`, in FOLDER/NAME.txt.

FINISHED: the workflow of the campaign `default` with its results; commands run in copies of it and in one without runs.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from tests.gates import campaigns, forks
from tests.gates.campaigns import LOAD, MEASURED, MODEL, SERVER, campaign_file
from tests.gates.golden import masked
from tests.gates.library import PROGRAMS, command_words, host_fingerprint
from tests.gates.transcript import transcript
from tests.support.paths import REPOSITORY, SCRIPTS

CAMPAIGN = "config/campaigns/default.yaml"
DEFAULT = ("--configfile", CAMPAIGN)
RESULTS = "results/campaigns/default"
# Beside commands, what their options choose.
FINISHED = {
    "plan": ("kveval", "plan", CAMPAIGN),
    "curve": ("kveval", "curve", CAMPAIGN),
    "verify": ("kveval", "verify", CAMPAIGN, "--cores", "2"),
    "prune": ("kveval", "prune", CAMPAIGN),
    "prune-delete": ("kveval", "prune", CAMPAIGN, "--delete"),
    "history": ("kveval", "history", CAMPAIGN),
    "report-again": ("report", *DEFAULT),
    "report_so_far": ("report_so_far", *DEFAULT),
    "doctor": ("kveval", "doctor", CAMPAIGN),
    "teardown": ("kveval", "teardown", CAMPAIGN),
    "check": ("kveval", "check", CAMPAIGN),
    "check-same": (
        *("kveval", "check", CAMPAIGN),
        *("--base", "0.32.0", "--candidate", "0.32.0"),
    ),
    "check-one": ("kveval", "check", CAMPAIGN, "--base", "0.31.0"),
    "deploy_one": ("kveval", "deploy-one", CAMPAIGN),
    "deploy_one-cell": (
        *("kveval", "deploy-one", CAMPAIGN),
        *("--cell", f"{MODEL}/no-offload/0"),
    ),
}
"""Name -> command, in the finished workflow, in this order."""
FEBRUARY = "config/campaigns/feb-2026.yaml"
WITHOUT_RUNS = {
    "plan-no-runs": ("kveval", "plan", CAMPAIGN),
    "curve-no-runs": ("kveval", "curve", CAMPAIGN),
    "verify-no-runs": ("kveval", "verify", CAMPAIGN, "--cores", "2"),
    "prune-no-runs": ("kveval", "prune", CAMPAIGN),
    "history-no-runs": ("kveval", "history", CAMPAIGN),
    "report_so_far-no-runs": ("report_so_far", *DEFAULT),
    "plan-arms": ("kveval", "plan", "config/campaigns/arms.yaml"),
    "plan-trace": ("kveval", "plan", "config/campaigns/trace.yaml"),
    "curve-trace": ("kveval", "curve", "config/campaigns/trace.yaml"),
    "trace": ("kveval", "trace", "requests.csv", "--out", "trace.jsonl"),
    "trace-no-log": ("kveval", "trace", "server.log"),
    "plan-compared": ("kveval", "plan", "config/campaigns/compared.yaml"),
    "plan-cluster": ("kveval", "plan", FEBRUARY),
    "doctor-cluster": ("kveval", "doctor", FEBRUARY),
    "deploy_one-cluster": ("kveval", "deploy-one", FEBRUARY),
    "teardown-cluster": ("kveval", "teardown", FEBRUARY),
}
HELP = {
    "-".join(["help", *program.removeprefix("python -m ").split(), *words]): (
        *(program, *words),
        "--help",
    )
    for program in PROGRAMS
    for words in (command_words() if program == "kveval" else [()])
}
"""Name -> program or command, asked for its options."""
MISTYPED = {
    "target": ("reprot",),
    "model": (f"{RESULTS}/Qwen3-06B/no-offload/0/peak.csv",),
    "scenario": (f"{RESULTS}/{MODEL}/no-ofload/0/peak.csv",),
    "run-of-scenario": (f"{RESULTS}/{MODEL}/no-ofload/0/run-1/measurement.json",),
    "file": (f"{RESULTS}/{MODEL}/no-offload/0/peak.csvv",),
    "no-tier": (f"{RESULTS}/{MODEL}/native-offload/0/peak.csv",),
    "tier-of-none": (f"{RESULTS}/{MODEL}/no-offload/500/peak.csv",),
    "size": (f"{RESULTS}/{MODEL}/native-offload/ten/peak.csv",),
    "figure": (f"{RESULTS}/figures/effect_plott.png",),
}
"""Mistake -> the target that was mistyped."""


def _changed(**changes: Any) -> dict[str, Any]:
    return {**MEASURED["default"].values, **changes}


def _matrix(scenario: str, blocks: list[Any], model: str = MODEL) -> dict[str, Any]:
    part = {"models": [model], "scenarios": [scenario], "cpu_blocks": blocks}
    return _changed(matrix=[part])


MISTAKEN: dict[str, dict[str, Any] | str] = {
    "key": _changed(rums=3),
    "nested-key": _changed(server={**SERVER, "vlm": "0.32.0"}),
    "type": _changed(runs="three"),
    "negative": _changed(runs=-1),
    "no-name": {k: v for k, v in _changed().items() if k != "name"},
    "workload": _changed(workload="loads"),
    "matrix-model": _matrix("native-offload", [500], "Qwen3-06B"),
    "matrix-scenario": _matrix("native-ofload", [500]),
    "matrix-no-tier": _matrix("native-offload", [0]),
    "tier-too-large": _matrix("native-offload", [100_000_000]),
    "size-text": _matrix("native-offload", ["10k"]),
    "levels": _changed(workloads={"load": {**LOAD, "levels": []}}),
    "warmup": _changed(workloads={"load": {**LOAD, "warmup_s": 60}}),
    "version": _changed(server={**SERVER, "vllm": "latest"}),
    "prices": _changed(prices={"gpu_hour_usd": 2.5}),
    "contrast": _changed(comparison={"contrasts": [["native-offload", "lmcache"]]}),
    "goodput": _changed(goodput={"ttft": 400}),
    "several": _changed(runs=0, workload="loads", seed="one"),
    "import": {**campaigns.IMPORTED, "import": "nowhere.csv"},
    "import-no-text": {**campaigns.IMPORTED, "import": ["old-results"]},
    "compare": {**campaigns.COMPARED, "compare": [{"campaign": "x", "label": "x"}]},
    "yaml": "name: broken\nserver: {vllm: 0.32.0\n",
    "tab": 'name: tabbed\nserver:\n\tvllm: "0.32.0"\n',
    "no-mapping": "- a\n- b\n",
}
"""Mistake -> the campaign that has it."""
NAMES = (
    *FINISHED,
    *WITHOUT_RUNS,
    *HELP,
    *(f"mistake-target-{name}" for name in MISTYPED),
    *(f"mistake-campaign-{name}" for name in MISTAKEN),
)


REQUESTS = """\
Timestamp,Session ID,Request tokens,Response tokens
0,a,472,18
45.5,a,1087,230
118,b,417,276
600,a,1360,647
601,,-1,0
"""
"""A log of requests, without their text."""


def masks(folder: Path) -> dict[str, str]:
    """What is masked: pattern -> name."""
    return {
        str(folder): "FOLDER",
        str(REPOSITORY): "REPOSITORY",
        host_fingerprint(): "FINGERPRINT",
        r"read in\s+[\d.,]+ m?s": "read in TIME",
        r"\d+(\.\d+)? kB": "N kB",
        r"\d+ cores": "N cores",
        r"history/[0-9a-f]{16}": "history/DIGEST",
        r"\n(ok|warning|ERROR) +host {2,}(.|\n)*?(?=\n(ok|warning|ERROR) |\n\n)": "",
        r"^(ok|warning|ERROR)( +)(PCP|disk|/dev/shm|host memory) (.|\n)*?(?=^(ok|warning|ERROR) |\n\n)": r"HOST\2\3\n",
        r"^\d+ errors?, \d+ warnings?, \d+ ok$": "N errors, N warnings, N ok",
        r"[ \t]+$": "",
    }


def make(finished: Path, folder: Path, names: Iterable[str]) -> None:
    """Write the transcripts of some commands; those of the finished workflow in their order."""
    for name in names:
        if name in FINISHED:
            workflow, command = folder / "finished", FINISHED[name]
        elif name in WITHOUT_RUNS:
            workflow, command = folder / "without-runs", WITHOUT_RUNS[name]
        elif name in HELP:
            workflow, command = folder / "without-runs", HELP[name]
        else:
            workflow, command = folder / "mistakes", _mistake(name)
        if not workflow.exists():
            _make_workflow(workflow, finished)
        text = masked(transcript(workflow, *command), masks(workflow))
        (folder / f"{name}.txt").write_text(text)


def _mistake(name: str) -> tuple[str, ...]:
    target = name.removeprefix("mistake-target-")
    if target in MISTYPED:
        return (*MISTYPED[target], "-n", *DEFAULT)
    campaign = name.removeprefix("mistake-campaign-")
    return ("report", "-n", "--configfile", f"config/campaigns/{campaign}.yaml")


def _make_workflow(folder: Path, finished: Path) -> None:
    if folder.name == "finished":
        shutil.copytree(finished, folder, symlinks=True)
        return
    campaigns.make_workflow(folder, Path(__file__).parent / "stand_ins")
    for name, measured in MEASURED.items():
        campaign_file(folder, name).write_text(yaml.safe_dump(measured.values))
    campaign_file(folder, "compared").write_text(yaml.safe_dump(campaigns.COMPARED))
    shipped = REPOSITORY / "config" / "campaigns" / "feb-2026.yaml"
    shutil.copy2(shipped, folder / "config" / "campaigns")
    (folder / "requests.csv").write_text(REQUESTS)
    (folder / "server.log").write_text("INFO 11-26 08:00:00 Received request\n")
    mistaken = MISTAKEN if folder.name == "mistakes" else {}
    for name, content in mistaken.items():
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        campaign_file(folder, name).write_text(text)


def main(finished: Path, folder: Path) -> int:
    """Write all transcripts, in two processes; return 1 if one failed."""
    forks.load(SCRIPTS.glob("*.py"))
    folder.mkdir(parents=True, exist_ok=True)
    with forks.served(folder / "forks") as programs:
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        sys.executable = str(programs / "python")
        others = [name for name in NAMES if name not in FINISHED]
        halves = [
            forks.in_fork(lambda names=names: make(finished, folder, names))
            for names in (FINISHED, others)
        ]
        return max(int(os.waitpid(child, 0)[1] != 0) for child in halves)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()))
