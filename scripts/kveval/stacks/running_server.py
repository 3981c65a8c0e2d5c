"""A program that serves models and runs already: the half of a server's class that needs no campaign.

It says by what the program is recognised, what it tells of itself, how a text is sent to it, and what its counters are
called. The methods that ask something get a callable that sends the request; they raise HttpError where nothing answers.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from packaging.version import Version

from kveval.campaign.metric import name_for
from kveval.stacks.counters import MetricSample
from kveval.stacks.talk import Ask


@dataclass(frozen=True)
class Completion:
    """A greedy answer: its tokens and, if requested, the likeliest at each place with their log-probabilities, nats."""

    prompt_tokens: int
    tokens: tuple[str, ...]
    likeliest: Sequence[Mapping[str, float]] = ()


@dataclass(frozen=True)
class RunningFacts:
    """Facts that a running server tells of its caches; None for what it does not tell.

    Attributes:
        block_tokens: tokens of a block, or of a page.
        device_blocks: blocks of the device's cache of one engine.
        device_tokens: tokens that the device's cache of one engine holds.
        engines: engines behind the address, each with caches of its own.
        device_caching: whether the device's cache serves later requests.
        connector: what is configured behind the device; "" for nothing.
        tier_bytes: of the tier in host memory, as declared, over all ranks.
        tier_tokens: of the same tier.
        read_from: where this was read.
    """

    block_tokens: int | None = None
    device_blocks: int | None = None
    device_tokens: int | None = None
    engines: int = 1
    device_caching: bool | None = None
    connector: str | None = None
    tier_bytes: int | None = None
    tier_tokens: int | None = None
    read_from: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advice:
    """Changes that would let a server tell more, in words of its program: how metrics, its endpoint and a tier are had."""

    metrics: str
    emptying: str
    tier: str


class RunningServer(ABC):
    """A program that serves models, as it is asked from outside.

    Attributes:
        name: its key among the versions of a specification, and its name among the sources of a recording.
        title: the name in sentences.
        prefix: what the names of its counters begin with.
        metrics: term of TERMS -> {first version: name on wire}; "*" is before all versions, and a name may carry one
            label.
        health_path: answers 200 once the server accepts requests.
        model_path: answers 200 once the model is served.
        metrics_path: its Prometheus endpoint.
        salted: whether a text with another `cache_salt` is another text to its caches.
        empties_device_alone: whether its device's cache can be emptied while its tiers keep what they have.
        advice: what would let it tell more.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    prefix: ClassVar[str]
    metrics: ClassVar[Mapping[str, Mapping[str, str]]]
    health_path: ClassVar[str]
    model_path: ClassVar[str]
    metrics_path: ClassVar[str] = "/metrics"
    salted: ClassVar[bool] = False
    empties_device_alone: ClassVar[bool] = False
    advice: ClassVar[Advice] = Advice(
        metrics="open its metrics",
        emptying="open its endpoint that empties the device's cache",
        tier="configure a tier",
    )

    # Names on the wire.

    def on_wire(self, metric: str, version: str) -> str | None:
        """Return the name on the wire of a metric in a release; None where it has none."""
        return name_for(self.metrics.get(metric, {}), version)

    def counts(self, name: str) -> bool:
        """Tell whether a metric, given by its name on the wire, is one of its own of any release."""
        return any(name in names.values() for names in self.metrics.values())

    def served_tokens_counter(self, version: str, *, tier: bool) -> str | None:
        """Return the counter of the prompt tokens that the tier served, or the device's own cache; None without one."""
        term = "external_prefix_cache_hits" if tier else "prefix_cache_hits"
        return self.on_wire(term, version)

    def counted(self, term: str, counters: Mapping[str, float]) -> float | None:
        """Return the value of a term of TERMS under the newest of its names that the counters have; None without one.

        The release is not needed for it, which builds between releases do not name rightly.
        """
        names = self.metrics.get(term, {})
        ages = {key: Version("0" if key == "*" else key) for key in names}
        for key in sorted(names, key=ages.__getitem__, reverse=True):
            if names[key] in counters:
                return counters[names[key]]
        return None

    def served_tokens(
        self, counters: Mapping[str, float], *, tier: bool
    ) -> float | None:
        """Return the prompt tokens that the tier, or the device, has served by these counters; None if not counted."""
        term = "external_prefix_cache_hits" if tier else "prefix_cache_hits"
        return self.counted(term, counters)

    # Asking.

    def answers_as(self, models: Any, metrics_page: str) -> bool:
        """Tell whether the program is recognised: by its metrics, or by the owner of its models.

        `models`: the decoded answer of the path of models.
        """
        if any(line.startswith(self.prefix) for line in metrics_page.splitlines()):
            return True
        return any(
            str(entry.get("owned_by", "")).lower() == self.name
            for entry in model_entries(models)
        )

    def facts(self, samples: Sequence[MetricSample], ask: Ask) -> RunningFacts:
        """Return what the program tells of its caches, in its metrics and where its arguments can be read."""
        return RunningFacts()

    def text_request(
        self, model: str, text: str, tokens: int, *, salt: str = "", loads: bool = True
    ) -> dict[str, Any]:
        """Return the body that requests the greedy continuation of a text as a stream, with its usage at the end.

        `salt` makes it another text to the caches, where `salted` is true; without `loads` nothing is loaded from
        tiers, where `switches_loading` is true.
        """
        body: dict[str, Any] = {
            "model": model,
            "prompt": text,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body | ({"cache_salt": salt} if salt else {})

    def without_loading(self, version: str) -> Mapping[str, Any] | None:
        """Return what the body of a request has in addition for nothing to be loaded from tiers for it.

        None in releases that have no such thing.
        """
        return None

    def switches_loading(self, version: str, facts: RunningFacts) -> bool:
        """Tell whether a request can say that nothing is to be loaded from tiers for it, with what is configured."""
        return False

    @abstractmethod
    def version(self, ask: Ask) -> str:
        """Return the release that the server reports, "" if it does not."""

    @abstractmethod
    def models(self, ask: Ask) -> list[str]:
        """Return the names of the models that it serves."""

    def completed(
        self, ask: Ask, served_model: str, prompt: str, tokens: int, likeliest: int
    ) -> Completion | None:
        """Request the greedy continuation of a text by `tokens` tokens, with the `likeliest` most likely at each place.

        Returns None if the answer lacks its tokens.
        """
        return None

    @abstractmethod
    def emptied(self, ask: Ask, *, tiers: bool = True) -> bool:
        """Request that it empties the device's cache and, with `tiers`, its own tiers; return False if it refuses."""


class OtherServer(RunningServer):
    """A program that is not known here: texts can be sent to it, and that is all."""

    name = "other"
    title = "an unknown program"
    prefix = "(no counter)"
    metrics: ClassVar[dict[str, dict[str, str]]] = {
        "generation_tokens": {},
        "requests_running": {},
        "requests_waiting": {},
    }
    health_path = "/health"
    model_path = "/v1/models"

    def version(self, ask: Ask) -> str:
        """Return nothing: where it is asked for differs from program to program."""
        return ""

    def models(self, ask: Ask) -> list[str]:
        """Return the names from /v1/models."""
        return [str(entry.get("id")) for entry in model_entries(ask(self.model_path))]

    def emptied(self, ask: Ask, *, tiers: bool = True) -> bool:
        """Return False: how its caches are emptied is not known."""
        return False


def model_entries(models: Any) -> list[dict[str, Any]]:
    """Return the entries of an answer of /v1/models; none if it is no such answer."""
    entries = models.get("data") if isinstance(models, dict) else None
    listed: Iterable[Any] = entries if isinstance(entries, list) else ()
    return [entry for entry in listed if isinstance(entry, dict)]


def whole_number(text: object) -> int | None:
    """Return a number as labels and arguments have it, None for anything else, such as "None"."""
    try:
        number = float(str(text))
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
