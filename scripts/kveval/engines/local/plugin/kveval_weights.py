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

import torch
from tokenizers import Tokenizer
from vllm.config import ModelConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.logger import init_logger
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

VERSION = 1
"""Raised when the values of the weights change; in the log, and from there in run.json."""
# Below vLLM's own logger, whose handlers it inherits.
logger = init_logger("vllm.kveval_weights")
# Standard deviation of logits: likeliest tokens are then about 0.7 nats apart, and a step of bfloat16 is 0.06.
_LOGITS = 4.0
# Queries and keys of this standard deviation make attention sharp: it reads few tokens, and which ones matters.
_ATTENTION = 3.0
_HIDDEN = 1.5
# What a layer adds to the hidden state: by its attention, which reads the cache, and besides. Much more than an
# embedding has, or the likeliest token would be the last one again. It grows from layer to layer, so that the last of
# many matters, too, and not beyond what 16 bits hold.
_ADDED_BY_ATTENTION = 4.0
_ADDED_BESIDES = 2.0
_GROWTH = 1.15
_GROWING_LAYERS = 40
# Logits of tokens that are no words, in terms of the others.
_NO_WORDS = 0.1
_SPACE = "\u0120"
_KNOWN = {"LlamaForCausalLM", "Qwen3ForCausalLM"}


class PromptDependentLoader(DummyModelLoader):
    """Draws the weights of a known model such that its answers depend on the prompt."""

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        """Draw every weight of the model; one that is quantised or not known gets vLLM's."""
        known = _KNOWN.intersection(model_config.hf_config.architectures or ())
        if model_config.quantization is not None or not known or not _tokenizer(model_config).exists():
            super().load_weights(model, model_config)
            return
        untied = any(name.startswith("lm_head.") for name, _ in model.named_parameters())
        with torch.no_grad():
            for name, weight in model.named_parameters():
                _draw(name, weight)
                if name.startswith("lm_head.") or ("embed_tokens" in name and not untied):
                    _prefer_words(weight, model_config)
        logger.info("kveval: random weights, version %d: answers depend on the prompt", VERSION)


def _tokenizer(model_config: ModelConfig) -> Path:
    return Path(model_config.tokenizer) / "tokenizer.json"


def _draw(name: str, weight: torch.Tensor) -> None:
    """Fill a norm with its factor, a matrix with seeded values, of the same distribution on every rank."""
    if weight.dim() == 1:
        weight.fill_(_ATTENTION if re.search(r"\.[qk]_norm\.", name) else 1.0)
        return
    seed = zlib.crc32(f"{get_tensor_model_parallel_rank()} {name}".encode())
    generator = torch.Generator(device=weight.device).manual_seed(seed)
    # Uniform, because that takes less time than a normal distribution.
    limit = _deviation(name, weight.shape[1]) * math.sqrt(3)
    weight.uniform_(-limit, limit, generator=generator)


def _deviation(name: str, inputs: int) -> float:
    """Return the standard deviation of a matrix's values; `inputs` of it are summed, on this rank, for an output."""
    if "embed_tokens" in name or name.startswith("lm_head."):
        return _LOGITS / math.sqrt(inputs)
    if "qkv_proj" in name:
        return _ATTENTION / math.sqrt(inputs)
    if "o_proj" not in name and "down_proj" not in name:
        return _HIDDEN / math.sqrt(inputs)
    # These sum over the ranks as well.
    summed = inputs * get_tensor_model_parallel_world_size()
    layer = re.search(r"\.layers\.(\d+)\.", name)
    grown = _GROWTH ** min(int(layer[1]) if layer else 0, _GROWING_LAYERS)
    added = _ADDED_BY_ATTENTION / _ATTENTION if "o_proj" in name else _ADDED_BESIDES
    return grown * added / math.sqrt(summed)


def _prefer_words(weight: torch.Tensor, model_config: ModelConfig) -> None:
    """Make answers of words alone: of each token there is text at once, and all of them are as many in a later prompt.

    Bytes of a character are held back until it is complete, special tokens have no text, and parts of words become
    other tokens when the text is split again.
    """
    tokenizer = Tokenizer.from_file(str(_tokenizer(model_config)))
    vocabulary = tokenizer.get_vocab()
    words = {token: " " + token[1:] for token in vocabulary if re.fullmatch(f"{_SPACE}[A-Za-z]+", token)}
    split = tokenizer.encode_batch(list(words.values()), add_special_tokens=False)
    whole = [vocabulary[token] for token, found in zip(words, split, strict=True) if found.ids == [vocabulary[token]]]
    factors = torch.full((get_tensor_model_parallel_world_size() * weight.shape[0],), _NO_WORDS)
    factors[torch.tensor(whole, dtype=torch.long)] = 1.0
    first = get_tensor_model_parallel_rank() * weight.shape[0]
    # In place: on a GPU there may be no room for a copy of so large a matrix.
    weight.mul_(factors[first : first + weight.shape[0], None].to(weight))


def register() -> None:
    """Have vLLM load models with `--load-format dummy` by the loader here."""
    register_model_loader("dummy")(PromptDependentLoader)
