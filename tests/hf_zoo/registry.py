"""Tiny randomly initialised models of the transformers library, built through their own configs and classes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.architectures.registry import scramble, settle

Inputs = Callable[[], dict[str, Tensor]]
Sizes = dict[str, Any]


@dataclass(frozen=True)
class ZooModel:
    """One library model, and the keyword arguments to call it with."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs


ZOO: dict[str, ZooModel] = {}


def add(name: str, model: str, inputs: Inputs, **sizes: Any) -> None:
    ZOO[name] = ZooModel(name, lambda: _build(model, sizes, inputs), inputs)


def _build(model: str, sizes: Sizes, inputs: Inputs) -> nn.Module:
    model_class = getattr(importlib.import_module("transformers"), model)
    config = model_class.config_class(**sizes)
    for part in _configs(config):
        if getattr(part, "use_cache", False):
            part.use_cache = False
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        built: nn.Module = model_class(config).eval()
        scramble(built)
        _enliven(built)
        settle(built, inputs())
    return built


def _enliven(model: nn.Module) -> None:
    """Raise the library's small initial weights, under which so small a model hardly heeds its input."""
    for parameter in model.parameters():
        size = parameter.square().mean().sqrt()
        if parameter.ndim >= 2 and 0 < size < 0.05:
            parameter.mul_(0.1 / size)
    for name, buffer in model.named_buffers():
        if name.endswith("codebook.embed"):  # all zeros until trained
            buffer.normal_(std=0.1)


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None:
            yield from _configs(part)


def ids(*shape: int, vocabulary: int = 99, seed: int = 0) -> Tensor:
    return torch.randint(4, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def text() -> dict[str, Tensor]:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return {"input_ids": ids(2, 12), "attention_mask": mask}


def first_of(length: int) -> Tensor:
    return (torch.arange(length) == 0).long().repeat(2, 1)


def tokens() -> dict[str, Tensor]:
    return {"input_ids": ids(2, 12)}


def pair() -> dict[str, Tensor]:
    return {"input_ids": ids(2, 12), "decoder_input_ids": ids(2, 7, seed=1)}


def image_of(size: int = 32, channels: int = 3) -> Inputs:
    return lambda: {"pixel_values": floats(2, channels, size, size)}


def wave(length: int = 800) -> Inputs:
    return lambda: {"input_values": floats(2, length)}


def image_and_text(size: int = 32) -> Inputs:
    return lambda: {"input_ids": ids(2, 8), "pixel_values": floats(2, 3, size, size)}


WIDTH: Sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT: Sizes = {**WIDTH, "intermediate_size": 64, "vocab_size": 99, "max_position_embeddings": 64}
VIT: Sizes = {**WIDTH, "intermediate_size": 64, "image_size": 32, "patch_size": 8}
LLAMA: Sizes = {**BERT, "num_key_value_heads": 2}
SPECIAL: Sizes = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MOE: Sizes = {**LLAMA, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
BART: Sizes = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
T5: Sizes = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
