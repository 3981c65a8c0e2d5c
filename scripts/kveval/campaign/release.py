"""A release of llm-d in the catalogue: images, labels, and the configuration of its endpoint picker."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from kveval.campaign.types import VersionText
from kveval.host.values import Mistake, Strict, Text

Routing = Literal["prefix", "tiered-prefix"]
"""How the endpoint picker scores prefixes: with one scorer, or with one for each tier."""
_PLACES = {"vllm", "guidellm", "lmcache"}


def _image(text: str) -> str:
    places = set(re.findall(r"\{(\w*)\}", text))
    if places - _PLACES or not re.match(r"^[a-z0-9][\w.:/{}@-]*$", text):
        message = f"{text!r} is not an image; valid is REGISTRY/NAME:TAG, with {{vllm}}, {{guidellm}} or {{lmcache}}"
        raise Mistake(message, "no_image")
    return text


Image = Annotated[str, AfterValidator(_image)]
"""An image's name with placeholders for the declared versions: {vllm}, {guidellm}, {lmcache}."""


class Images(Strict):
    """The images of a release, by purpose; those of programs beside the server by their names: redis, lmcache, ..."""

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, Image]
    server: Image = Field(description="vLLM on GPUs")
    cpu_server: Image = Field(description="vLLM on the CPU, for build vllm-cpu")
    epp: Image = Field(
        description="the endpoint picker; it must be one that has the index of KV blocks"
    )
    proxy: Image = Field(
        description="Envoy beside the endpoint picker, where there is no Gateway"
    )
    guidellm: Image
    tokenizer: Image = Field(
        description="vLLM without a device, which tokenizes for a precise index"
    )

    @property
    def by_name(self) -> dict[str, str]:
        """All images by name."""
        return self.model_dump()


class EndpointPicker(Strict):
    """How the endpoint picker of a release is configured."""

    api_version: Text = Field(description="of the kind EndpointPickerConfig")
    prefix_state: Literal["scorer", "producer"]
    """what keeps the state of prefixes: every scorer its own, or producers that scorers name"""
    args: tuple[Text, ...] = Field(
        (), description="more flags, in addition to those of its chart"
    )
    tokenizer_cache: Text | None = None
    """folder for tokenizers, where the picker's own default cannot be written"""
    objectives: tuple[Text, ...] = ()
    """API groups of the InferenceObjectives without which it does not start behind a Gateway"""


class CacheEvents(Strict):
    """How servers of a release tell the endpoint picker what they hold."""

    endpoint: Text = Field(
        description="ZMQ: an address that vLLM binds (*), or the endpoint picker's, to connect to"
    )
    topic: Text = Field(
        description="name under which a replica is known to the endpoint picker; {model} is served"
    )
    args: tuple[Text, ...] = Field((), description="more arguments of the server")


class Router(Strict):
    """The charts from which a release's router is rendered, files in manifests/llm-d, and the kinds they need."""

    standalone: Text | None = Field(
        None, description="with a proxy of its own; the release has none when left out"
    )
    gateway: Text = Field(description="behind a Gateway")
    gateway_api: Text = Field(
        description="release of the Gateway API whose kinds it needs"
    )
    inference_extension: Text = Field(
        description="release of the Gateway API's inference extension, likewise"
    )


class Release(Strict):
    """A release of llm-d."""

    title: Text
    sources: tuple[Text, ...] = Field(
        description="where it is stated that these parts were shipped together"
    )
    vllm: VersionText = Field(description="vLLM in the server's image")
    lmcache: VersionText | None = Field(
        None, description="LMCache in the server's image, where that is known"
    )
    lmcache_form: Literal["process", "server"]
    """LMCache inside the server's process, or a server of its own"""
    images: Images
    server_labels: dict[Text, str] = Field(
        description="labels by which this release knows a model server's pod"
    )
    epp: EndpointPicker
    router: Router
    events: CacheEvents
