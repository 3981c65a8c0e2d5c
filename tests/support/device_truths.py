"""The sizes of devices in benchmarks/device_truths.yaml, each beside what the estimate says."""

from typing import Any, NamedTuple

import yaml
from tests.support.paths import REPOSITORY

from kveval.campaign.catalogue import Gpu, Model
from kveval.campaign.device_estimate import DeviceEstimate
from kveval.campaign.entries import validate_entries
from kveval.campaign.inheritance import YamlEntry, read_yaml
from kveval.stacks.vllm_memory import ServerMemory, estimate_device

CONFIG = REPOSITORY / "config"
TRUTHS = REPOSITORY / "benchmarks" / "device_truths.yaml"
# Of a truth's keys, those that are no setting of its server.
_ABOUT = ("source", "gpu", "memory_gib", "model", "tokens")


class Truth(NamedTuple):
    """What a server reported, and the estimate for it."""

    model: str
    gpu: str
    server: ServerMemory
    memory: Gpu
    tokens: int
    estimate: DeviceEstimate
    source: str

    @property
    def inside(self) -> bool:
        """Whether the range has what the server reported."""
        return self.estimate.low_tokens <= self.tokens <= self.estimate.high_tokens

    @property
    def half_width(self) -> float:
        """Half of the range, as a share of its middle."""
        low, high = self.estimate.low_tokens, self.estimate.high_tokens
        return (high - low) / (high + low)

    @property
    def error(self) -> float:
        """What the estimate says too much, as a share of what the server reported."""
        return self.estimate.tokens / self.tokens - 1


def read_truths() -> list[Truth]:
    """Return every size of device_truths.yaml, in its order."""
    content = yaml.safe_load(TRUTHS.read_text())
    models = _valid("models", content["models"])
    gpus = _valid("gpus", {})
    return [_truth(entry, models, gpus) for entry in content["truths"]]


def _valid(kind: str, own: dict[str, Any]) -> dict[str, Any]:
    raw = read_yaml(CONFIG / f"{kind}.yaml")[0] | own
    entries = {name: YamlEntry(entry, kind, name) for name, entry in raw.items()}
    problems: list[Any] = []
    valid = validate_entries(kind, entries, problems)
    assert not problems, problems
    return valid


def _truth(
    entry: dict[str, Any], models: dict[str, Model], gpus: dict[str, Gpu]
) -> Truth:
    model, gpu = models[entry["model"]], entry["gpu"]
    settings = {key: value for key, value in entry.items() if key not in _ABOUT}
    server = ServerMemory(
        geometry=model.geometry,
        dtype=model.dtype,
        quantization=model.quantization,
        **settings,
    )
    source = entry["source"]
    memory = gpus.get(gpu) or Gpu(memory_gib=entry["memory_gib"], source=source)
    estimate = estimate_device(server, memory, gpu)
    return Truth(entry["model"], gpu, server, memory, entry["tokens"], estimate, source)
