"""The shipped configuration as raw content, changed and written elsewhere; shared by the tests of kveval.campaign."""

import copy

import yaml
from tests.support.paths import REPOSITORY

from kveval.campaign.cell import Cell
from kveval.configuration.loading import load_config

ROOT = REPOSITORY
CONFIG = ROOT / "config"
NAMES = (
    "config",
    "models",
    "scenarios",
    "workloads",
    "metrics",
    "releases",
    "known_defects",
    "gpus",
)
SHIPPED = {name: (CONFIG / f"{name}.yaml").read_text() for name in NAMES}
RAW = {name: yaml.load(text, Loader=yaml.CSafeLoader) for name, text in SHIPPED.items()}
BASE = Cell("Qwen3-0.6B", "no-offload", 0)
NATIVE = Cell("Qwen3-0.6B", "native-offload", 10_000)
LMCACHE = Cell("Qwen3-0.6B", "lmcache-local", 10_000)
OTHER = Cell("Qwen3-8B", "native-offload", 10_000)
CELLS = (BASE, NATIVE, LMCACHE, OTHER)


def changed(path, value, base=None):
    """Return a copy of the raw files with one value at a path such as ("config", "server", "vllm")."""
    files = copy.deepcopy(base or RAW)
    *parents, last = path
    place = files
    for key in parents:
        place = place[key]
    place[last] = value
    return files


def dump(content):
    return yaml.dump(content, Dumper=yaml.CSafeDumper)


def write(folder, files):
    """Write the files that are YAML already as they are, and those that nothing changed as they are shipped."""
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        text = (
            content
            if isinstance(content, str)
            else SHIPPED[name]
            if content == RAW.get(name)
            else dump(content)
        )
        (folder / f"{name}.yaml").write_text(text)
    return folder


def load(folder, files):
    write(folder, files)
    return load_config(folder / "config.yaml", folder)


def load_raw(files, folder):
    """Load the campaign from a mapping; catalogues from files."""
    write(
        folder, {name: content for name, content in files.items() if name != "config"}
    )
    return load_config(files["config"], folder)


def ids(config):
    return {cell: config.measurement_id(cell) for cell in CELLS}


GPU_SERVER = {
    "vllm": "0.22.1",
    "guidellm": "0.8.1",
    "lmcache": "0.5.6",
    "weights": "full",
}


def on_gpus(model, scenario, cpu_blocks, **server):
    """Return the raw files with a campaign of one full-size cell."""
    entry = {"models": [model], "scenarios": [scenario], "cpu_blocks": [cpu_blocks]}
    return changed(
        ("config", "server"),
        GPU_SERVER | server,
        changed(("config", "matrix"), [entry]),
    )


SITE = {"namespace": "bench", "gateway": {"name": "inference-gateway"}}
RELEASES = tuple(RAW["releases"])


def on_cluster(release, entries, *, site=None, **campaign):
    """Return the raw files with a campaign of these matrix entries on a cluster with a release's own vLLM.

    `entries`: (models, scenarios, cpu_blocks) each. Servers with the GPUs of the models have two each.
    """
    declared = campaign.pop("server", {})
    on_gpus_of_models = declared.get(
        "weights"
    ) != "miniature" and "cpu" not in declared.get("build", "")
    server = {
        **({"tensor_parallel_size": 2} if on_gpus_of_models else {}),
        "vllm": RAW["releases"][release]["vllm"],
        "guidellm": "0.8.1",
        "lmcache": RAW["releases"][release].get("lmcache", "0.5.6"),
        "block_size": 64,
        "release": release,
        **declared,
    }
    matrix = [
        dict(zip(("models", "scenarios", "cpu_blocks"), entry, strict=True))
        for entry in entries
    ]
    files = copy.deepcopy(RAW)
    files["config"] |= {
        "engine": "kubernetes",
        "cluster": SITE | (site or {}),
        "server": server,
        "workload": "published",
        "reset_caches": "restart",
        "matrix": matrix,
        **campaign,
    }
    return files
