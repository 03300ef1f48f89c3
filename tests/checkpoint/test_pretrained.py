"""Pruned transformers models load with `from_pretrained` where their config can say what is left of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

import secateur
from tests.support.checkpoints import assert_loads_as, masked

IDS = torch.arange(12).reshape(2, 6)
SMALL = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
}


def llama(tied: bool = True) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2, tie_word_embeddings=tied)).eval()


def untied_llama() -> nn.Module:
    return llama(tied=False)


def bert() -> nn.Module:
    return BertForSequenceClassification(BertConfig(**SMALL)).eval()


def inputs(build: Callable[[], nn.Module]) -> dict[str, Any]:
    return {"input_ids": IDS} if build is bert else {"input_ids": IDS, "use_cache": False}


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits  # type: ignore[no-any-return]


def cut(build: Callable[[], nn.Module], **options: Any) -> tuple[nn.Module, secateur.Plan]:
    model = build()
    plan = secateur.plan_channels(model, inputs(build), 0.5, **options)
    return secateur.apply(model, plan), plan


EVERYTHING: dict[str, int] = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
RESIDUAL = ["*embed*", "*o_proj", "*down_proj"]


@pytest.mark.parametrize(
    ("build", "options", "expected"),
    [
        (llama, {}, {**EVERYTHING, "num_key_value_heads": 1, "head_dim": 8}),
        (untied_llama, {}, {**EVERYTHING, "num_key_value_heads": 1, "head_dim": 8}),
        (llama, {"keep": RESIDUAL}, {**EVERYTHING, "hidden_size": 32, "num_key_value_heads": 1, "head_dim": 8}),
        (bert, {}, EVERYTHING),
    ],
    ids=["llama", "llama untied", "llama, residual stream kept", "bert"],
)
def test_a_config_that_can_say_the_widths_is_saved(
    build: Callable[[], nn.Module], options: dict[str, Any], expected: dict[str, int], tmp_path: Path
) -> None:
    model, plan = cut(build, **options)
    secateur.save(model, plan, tmp_path)
    assert secateur.read_checkpoint(tmp_path).not_from_pretrained is None
    config = json.loads((tmp_path / "config.json").read_text())
    assert {key: config[key] for key in expected} == expected
    kind = AutoModelForSequenceClassification if build is bert else AutoModelForCausalLM
    torch.testing.assert_close(logits(kind.from_pretrained(tmp_path)), logits(model), rtol=1e-5, atol=1e-6)
    loaded = assert_loads_as(model, tmp_path, build)
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-5, atol=1e-6)
    assert loaded.config.to_dict() == model.config.to_dict(), "it can be saved with save_pretrained"


def test_a_half_precision_model_stays_one(tmp_path: Path) -> None:
    model, plan = cut(llama)
    secateur.save(model.to(torch.bfloat16), plan, tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("build", "options", "reason"),
    [
        (
            bert,
            {"keep": ["*embeddings*", "*.dense", "*pooler*"]},
            "plan with keep=['bert.encoder.layer.*.attention",
        ),
        (llama, {"per_layer": {"model.layers.1.mlp*": 0.25}}, "mlp.gate_proj, which is not that of the other layers"),
    ],
    ids=["fewer heads of bert", "widths of their own"],
)
def test_a_config_that_cannot_is_not_saved_and_the_reason_is(
    build: Callable[[], nn.Module], options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.warns(secateur.SecateurWarning, match="from_pretrained will not load what save_pretrained writes"):
        model, plan = cut(build, **options)
    secateur.save(model, plan, tmp_path)
    assert reason in str(secateur.read_checkpoint(tmp_path).not_from_pretrained)
    assert not (tmp_path / "config.json").exists()
    assert torch.equal(logits(assert_loads_as(model, tmp_path, build)), logits(model))


def test_masked_weights_need_to_be_dense(tmp_path: Path) -> None:
    model, masks = masked(llama(), 0.5)
    secateur.save(model, masks, tmp_path, dense=True)
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(model))
    secateur.save(model, masks, tmp_path)
    assert "save it with dense=True" in str(secateur.read_checkpoint(tmp_path).not_from_pretrained)
    assert not (tmp_path / "config.json").exists(), "one that says what is no longer true goes"


def test_a_config_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("mine")
    secateur.save(nn.Linear(2, 2), [], tmp_path)
    secateur.save(nn.Linear(2, 2), [], tmp_path)
    assert (tmp_path / "config.json").read_text() == "mine"
