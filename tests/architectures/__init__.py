"""Small models of many architectures, to cut and to compare."""

from __future__ import annotations

from . import (
    attention,
    channel_games,
    cnn,
    cnn_mobile,
    dense,
    generative,
    language,
    language_odd,
    limits,
    norms,
    odd,
    outputs,
    sequence,
    vision_transformers,
)
from .registry import ARCHITECTURES, Architecture

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "attention",
    "channel_games",
    "cnn",
    "cnn_mobile",
    "dense",
    "generative",
    "language",
    "language_odd",
    "limits",
    "norms",
    "odd",
    "outputs",
    "sequence",
    "vision_transformers",
]
