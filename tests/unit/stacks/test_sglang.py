"""SGLang's counters: which cache served how many tokens, whatever labels stand beside the source."""

import pytest

from kveval.stacks.counters import parse_counters
from kveval.stacks.sglang import Sglang

NAME = "sglang:cached_tokens_total"
HEAD = f"# TYPE {NAME} counter"
OTHER = "# TYPE sglang:prompt_tokens_total counter\nsglang:prompt_tokens_total 900"


@pytest.mark.parametrize(
    ("lines", "device", "tier"),
    [
        ([], 0, 0),
        (['{cache_source="device"} 512'], 512, 0),
        (['{cache_source="host"} 256', '{cache_source="storage_file"} 64'], 0, 320),
        (['{alone="x",cache_source="device",zone="b"} 512'], 512, 0),
        (['{is="a",cache_source="host"} 1', '{is="b",cache_source="host"} 2'], 0, 3),
        (['{cache_source="total"} 700', '{cache_source="device"} 512'], 512, 0),
        (['{cache_source="total"} 700'], None, None),
        ([" 700"], None, None),
        (['{cache_source=""} 700'], None, None),
    ],
    ids=[
        "nothing served yet",
        "device",
        "two tiers",
        "a label before the source",
        "two series of a source",
        "a total beside a source",
        "a total alone",
        "no source",
        "an empty source",
    ],
)
def test_tokens_are_those_of_a_source_or_unknown(
    lines: list[str], device: float | None, tier: float | None
) -> None:
    page = "\n".join([OTHER, HEAD, *(f"{NAME}{line}" for line in lines), ""])
    counters = parse_counters(page, Sglang.prefix)
    assert Sglang().served_tokens(counters, tier=False) == device
    assert Sglang().served_tokens(counters, tier=True) == tier


def test_without_counters_nothing_is_known() -> None:
    assert Sglang().served_tokens({}, tier=True) is None
