"""Random weights under which a server's answers depend on its prompt, in place of vLLM's for `--load-format dummy`.

With vLLM's own, all of them below 0.001, every prompt gets one answer, and a cache that returns wrong keys and values
shows in none. Shapes, data types and kernels are the same with the weights here, and so is the speed. They are drawn in
memory, from seeds: every start has the same.

vLLM calls `register` in each of its processes, through its plug-in point `vllm.general_plugins`. A release in which
something is missing that is imported here goes on with its own weights, and so does a model that is quantised or not
known here.
"""

import math
import re
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from vllm.config import ModelConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.logger import init_logger
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader
from vllm.model_executor.models import ModelRegistry

VERSION = 1
"""Raised when the values of the weights change; in the log, and from there in run.json."""
# Below vLLM's own logger, whose handlers it inherits.
logger = init_logger("vllm.kveval_weights")
# These were chosen together, by simulating models of 2 to 32 layers in 16 bits: one of its layers, or a part of the
# tokens, without its keys and values changes answers, and another order of additions does not.
# Standard deviation of logits: likeliest tokens are then about 0.5 nats apart.
_LOGITS = 3.0
# Of queries, keys and values. More makes attention read single tokens, by which small differences grow in every layer.
_ATTENTION = 1.5
# What all layers together add to an embedding, in terms of it: by attention, before its average, and besides.
_ADDED_BY_ATTENTION = 5.0
_ADDED_BESIDES = 1.0
# Logits of tokens that are no words, in terms of the others.
_NO_WORDS = 0.7
_SPACE = "\u0120"
_HARMONY_TOKENS = 200_000
_PLAIN_GPT_OSS = "GptOssWithoutHarmonyForCausalLM"
_KNOWN = {
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
    _PLAIN_GPT_OSS,
    "Qwen3NextForCausalLM",
}
# Their norms multiply by one more than the weight, apart from those within a gated delta net.
_NORMS_ADD_ONE = {"Gemma3ForCausalLM", "Qwen3NextForCausalLM"}


class PromptDependentLoader(DummyModelLoader):
    """Draws the weights of a known model such that its answers depend on the prompt."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Draw every weight of the model; one that is quantised or not known gets vLLM's."""
        known = _KNOWN.intersection(model_config.hf_config.architectures or ())
        if (
            model_config.quantization is not None
            or not known
            or not _tokenizer(model_config).exists()
        ):
            super().load_weights(model, model_config)
            return
        untied = any(
            name.startswith("lm_head.") for name, _ in model.named_parameters()
        )
        with torch.no_grad():
            for name, weight in model.named_parameters():
                _draw(name, weight, model_config)
                if name.startswith("lm_head.") or (
                    "embed_tokens" in name and not untied
                ):
                    _prefer_words(weight, model_config)
        logger.info(
            "kveval: random weights, version %d: answers depend on the prompt", VERSION
        )


def _tokenizer(model_config: ModelConfig) -> Path:
    return Path(model_config.tokenizer) / "tokenizer.json"


def _draw(name: str, weight: torch.Tensor, model_config: ModelConfig) -> None:
    """Fill a norm with its factor, a matrix with seeded values, of the same distribution on every rank."""
    # Norms are the same on every rank.
    rank = get_tensor_model_parallel_rank() if weight.dim() > 1 else 0
    generator = torch.Generator(device=weight.device).manual_seed(
        zlib.crc32(f"{rank} {name}".encode())
    )
    if weight.dim() > 1:
        # Uniform, because that takes less time than a normal distribution.
        limit = _deviation(name, weight.shape[-1], model_config) * math.sqrt(3)
        weight.uniform_(-limit, limit, generator=generator)
    elif name.endswith("bias"):
        weight.zero_()
    elif name == "model.norm.weight":
        # Signs at random: where embeddings are the output matrix as well, each token would be answered by itself.
        weight.uniform_(-1.0, 1.0, generator=generator).sign_()
    else:
        weight.fill_(_ATTENTION if re.search(r"\.[qk]_norm\.", name) else 1.0)
    known = _NORMS_ADD_ONE.intersection(model_config.hf_config.architectures or ())
    if known and name.endswith("norm.weight") and ".linear_attn." not in name:
        weight.sub_(1.0)


def _deviation(name: str, inputs: int, model_config: ModelConfig) -> float:
    """Return the standard deviation of a matrix's values; `inputs` of it are summed, on this rank, for an output."""
    config = model_config.hf_config
    embedding = _LOGITS / math.sqrt(config.hidden_size)
    if "embed_tokens" in name or name.startswith("lm_head."):
        return embedding
    if "qkv_proj" in name:
        return _ATTENTION / math.sqrt(inputs)
    of_attention = "o_proj" in name or "out_proj" in name
    if not of_attention and "down_proj" not in name and "w2_weight" not in name:
        return 1 / math.sqrt(inputs)
    # These sum over the ranks as well.
    summed = inputs * get_tensor_model_parallel_world_size()
    added = _ADDED_BY_ATTENTION / _ATTENTION if of_attention else _ADDED_BESIDES
    return embedding * added / math.sqrt(config.num_hidden_layers * summed)


def _prefer_words(weight: torch.Tensor, model_config: ModelConfig) -> None:
    """Make answers of words alone: of each token there is text at once, and all of them are as many in a later prompt.

    Bytes of a character are held back until it is complete, special tokens have no text, and parts of words become
    other tokens when the text is split again.
    """
    tokenizer = Tokenizer.from_file(str(_tokenizer(model_config)))
    vocabulary = tokenizer.get_vocab()
    words = {
        token: " " + token[1:]
        for token in vocabulary
        if re.fullmatch(f"{_SPACE}[A-Za-z]+", token)
    }
    split = tokenizer.encode_batch(list(words.values()), add_special_tokens=False)
    whole = [
        vocabulary[token]
        for token, found in zip(words, split, strict=True)
        if found.ids == [vocabulary[token]]
    ]
    factors = torch.full(
        (get_tensor_model_parallel_world_size() * weight.shape[0],), _NO_WORDS
    )
    factors[torch.tensor(whole, dtype=torch.long)] = 1.0
    first = get_tensor_model_parallel_rank() * weight.shape[0]
    # In place: on a GPU there may be no room for a copy of so large a matrix.
    weight.mul_(factors[first : first + weight.shape[0], None].to(weight))


def _chat_without_harmony() -> None:
    """Have vLLM take chats with a gpt-oss of a small vocabulary as text, as it does with every other model.

    By the names of type and architecture it takes them in OpenAI's format Harmony, whose vocabulary of 200,000 tokens it
    downloads.
    """
    kind = getattr(transformers, "GptOssConfig", None)
    if kind is None:
        return
    make = kind.__init__

    def make_plain(config: Any, *args: Any, **kwargs: Any) -> None:
        make(config, *args, **kwargs)
        if config.vocab_size < _HARMONY_TOKENS:
            config.model_type = "gpt_oss_without_harmony"
            config.architectures = [_PLAIN_GPT_OSS]

    kind.__init__ = make_plain
    place = "vllm.model_executor.models.gpt_oss:GptOssForCausalLM"
    ModelRegistry.register_model(_PLAIN_GPT_OSS, place)


def register() -> None:
    """Have vLLM load models with `--load-format dummy` by the loader here."""
    register_model_loader("dummy")(PromptDependentLoader)
    _chat_without_harmony()
