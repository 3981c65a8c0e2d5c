"""A model's shape, as in its config.json: how large its weights and its KV cache are.

Most models attend to the whole conversation in every layer. Others keep less in some of their layers: a window of the
last tokens, a state of constant size, or one latent vector a token. What a cache of such a model holds is computed in
kveval.campaign.cache_layout.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator

from kveval.host.values import PositiveInt, Strict, Text


def _is_absent(value: Any) -> bool:
    return value is None


_OMITTED = Field(exclude_if=_is_absent)
"""Of a key without a value: its name is not in the JSON either."""


class SlidingWindow(Strict):
    """Layers that attend to the last tokens only."""

    layers: PositiveInt = Field(description="number of these layers")
    tokens: PositiveInt = Field(
        description="tokens that they attend to, sliding_window in config.json"
    )
    kv_heads: Annotated[PositiveInt | None, _OMITTED] = None
    """number of their key and value heads, where it is another one"""
    head_dim: Annotated[PositiveInt | None, _OMITTED] = None
    """values per head, where it is another number"""


class RecurrentState(Strict):
    """Layers with a state of constant size in place of keys and values: gated delta nets (linear_... in config.json)."""

    layers: PositiveInt = Field(description="number of these layers")
    key_heads: PositiveInt = Field(description="number of key heads")
    value_heads: PositiveInt = Field(description="number of value heads")
    key_head_dim: PositiveInt = Field(description="values per key head")
    value_head_dim: PositiveInt = Field(description="values per value head")
    conv_kernel: PositiveInt = Field(description="tokens that their convolution spans")
    dtype: Literal["auto", "float32"] = "auto"
    """of the recurrent state (mamba_ssm_dtype); auto is the model's own"""


class LatentAttention(Strict):
    """Multi-head latent attention (MLA): all heads share one compressed vector a token."""

    rank: PositiveInt = Field(description="values of that vector, kv_lora_rank")
    rope_dim: PositiveInt = Field(
        description="values of the key with its position, qk_rope_head_dim"
    )


class Geometry(Strict):
    """A model's shape, as in its config.json.

    A key that is left out is left out of its JSON as well, so that the ids of models without it do not change.
    """

    architecture: Text = Field(description="architecture, as in config.json")
    layers: PositiveInt = Field(description="number of layers")
    kv_heads: PositiveInt
    """number of key and value heads; with grouped-query attention fewer than attention_heads"""
    head_dim: PositiveInt = Field(description="values per head")
    hidden_size: PositiveInt = Field(description="values per token between layers")
    attention_heads: PositiveInt = Field(description="number of attention heads")
    intermediate_size: PositiveInt = Field(
        description="values per token within the MLP"
    )
    vocab_size: PositiveInt = Field(description="entries of the vocabulary")
    max_position_embeddings: PositiveInt = Field(
        description="longest possible conversation in tokens"
    )
    tie_word_embeddings: StrictBool = Field(
        False, description="whether input and output embeddings are the same"
    )
    sliding: Annotated[SlidingWindow | None, _OMITTED] = None
    """the layers with a sliding window, if there are any"""
    recurrent: Annotated[RecurrentState | None, _OMITTED] = None
    """the layers with a recurrent state, if there are any"""
    latent: Annotated[LatentAttention | None, _OMITTED] = None
    """multi-head latent attention, in place of keys and values by head"""
    parameters: Annotated[PositiveInt | None, _OMITTED] = None
    """number of weights, where it does not follow from the shape: models with experts"""

    @property
    def full_layers(self) -> int:
        """Number of layers that attend to the whole conversation."""
        others = (self.sliding, self.recurrent)
        return self.layers - sum(kind.layers for kind in others if kind is not None)

    @property
    def grouped(self) -> bool:
        """Whether a cache of the model has layers of several kinds."""
        return self.sliding is not None or self.recurrent is not None

    @model_validator(mode="after")
    def _heads(self) -> Self:
        if self.attention_heads % self.kv_heads:
            raise ValueError(
                f"{self.attention_heads} attention heads cannot share {self.kv_heads} KV heads evenly"
            )
        return self

    @model_validator(mode="after")
    def _kinds(self) -> Self:
        if self.full_layers < 1:
            raise ValueError(
                f"of {self.layers} layers none is left that attends to the whole conversation;"
                " valid is fewer layers in sliding and recurrent"
            )
        if self.latent is not None and self.grouped:
            raise ValueError(
                "latent together with sliding or recurrent is a kind of model that is not known here"
            )
        return self
