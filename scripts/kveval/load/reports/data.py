"""The synthetic load a report names: how many tokens, and which of them prompts share."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SyntheticData:
    """Synthetic prompts: tokens per turn, with their standard deviations, and the prefixes of conversations."""

    prompt_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    prefix_count: int = 0
    turns: int = 1
    prompt_stdev: float = 0.0
    output_stdev: float = 0.0

    @property
    def reuse_possible(self) -> bool:
        """Whether any prompt repeats what an earlier one held, without which no cache can have a hit."""
        return bool(self.prefix_tokens) or self.turns > 1


def synthetic_data(sources: Iterable[Any]) -> SyntheticData | None:
    """Return the load of a report's data argument, None unless it is exactly one synthetic source.

    A source is a mapping, its JSON, or `prompt_tokens=256,output_tokens=128`.
    """
    given = list(sources)
    fields = _fields(given[0]) if len(given) == 1 else {}
    if "prompt_tokens" not in fields or "output_tokens" not in fields:
        return None
    prefix_tokens, prefix_count = (
        fields.get("prefix_tokens"),
        fields.get("prefix_count"),
    )
    buckets = fields.get("prefix_buckets")
    if (
        isinstance(buckets, list)
        and len(buckets) == 1
        and isinstance(buckets[0], Mapping)
    ):
        prefix_tokens, prefix_count = (
            buckets[0].get("prefix_tokens"),
            buckets[0].get("prefix_count"),
        )
    try:
        tokens = int(prefix_tokens or 0)
        # Without a count all prompts share one prefix.
        return SyntheticData(
            prompt_tokens=int(fields["prompt_tokens"]),
            output_tokens=int(fields["output_tokens"]),
            prefix_tokens=tokens,
            prefix_count=int(prefix_count or 1) if tokens else 0,
            turns=int(fields.get("turns") or 1),
            prompt_stdev=float(fields.get("prompt_tokens_stdev") or 0),
            output_stdev=float(fields.get("output_tokens_stdev") or 0),
        )
    except (TypeError, ValueError):
        return None


def _fields(source: Any) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    if not isinstance(source, str):
        return {}
    if source.lstrip().startswith("{"):
        try:
            content = json.loads(source)
        except ValueError:
            return {}
        return content if isinstance(content, Mapping) else {}
    pairs = (part.partition("=") for part in source.split(","))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
