"""The estimate of what a server's device holds before any server has reported it, and the GPU that it is of.

How much of a GPU is left to the cache depends on the server: `ModelServer.device_estimate` has it. A size
that a server reported, or that the campaign sets, replaces the estimate.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from kveval.campaign.catalogue import Gpu


class DeviceEstimate(NamedTuple):
    """Tokens that one server's device holds, over all its ranks, with a range; `source`: what it rests on, in words."""

    tokens: int
    low_tokens: int
    high_tokens: int
    source: str


def gpu_named_in(hardware: str, gpus: Mapping[str, Gpu]) -> str | None:
    """Return the GPU that a campaign's `hardware` names, such as "2x L40S" or "A100-SXM4-80GB"; None if not one."""
    uncounted = re.sub(r"(?<![A-Z0-9])(\d+X)+", " ", hardware.upper())
    words = set(re.findall(r"[A-Z]+\d+[A-Z]*|\d+", uncounted))
    named = [
        name
        for name, gpu in gpus.items()
        if gpu.hardware and words.issuperset(gpu.hardware)
    ]
    return named[0] if len(named) == 1 else None
