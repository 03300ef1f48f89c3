"""After `apply`, `save_pretrained` writes what `from_pretrained` reads; what no config can say is named."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    RemBertConfig,
    RemBertForSequenceClassification,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

import secateur
from secateur.surgery import cutting
from tests.architectures.registry import scramble

WIDTHS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL = {**WIDTHS, "vocab_size": 40, "max_position_embeddings": 20}
CACHED = {"num_key_value_heads": 2, "use_cache": False}
TOKENS = {"input_ids": torch.arange(12).reshape(2, 6)}
IMAGES = {"pixel_values": torch.randn(1, 3, 32, 32)}

Build = Callable[[], Any]


def bert() -> Any:
    return BertForSequenceClassification(BertConfig(**SMALL))


MODELS: dict[str, tuple[Build, dict[str, Tensor]]] = {
    "bert": (bert, TOKENS),
    # The scale is no float that a module holds: only the code tells that the heads go with the hidden size.
    "rembert": (lambda: RemBertForSequenceClassification(RemBertConfig(**SMALL, input_embedding_size=16)), TOKENS),
    "gpt2": (
        lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=20, use_cache=False)
        ),
        TOKENS,
    ),
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**SMALL, **CACHED)), TOKENS),
    # Two numbers of heads that have to change at once.
    "qwen2": (lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, **CACHED)), TOKENS),
    # Two numbers that are the same width.
    "opt": (
        lambda: OPTForCausalLM(
            OPTConfig(
                **{name: size for name, size in SMALL.items() if name != "intermediate_size"},
                ffn_dim=48,
                word_embed_proj_dim=32,
                use_cache=False,
            )
        ),
        TOKENS,
    ),
    "vit": (lambda: ViTForImageClassification(ViTConfig(**WIDTHS, image_size=32, patch_size=8)), IMAGES),
    # Widths in a list.
    "resnet": (
        lambda: ResNetForImageClassification(
            ResNetConfig(depths=[1, 1], hidden_sizes=[16, 32], embedding_size=8, layer_type="basic")
        ),
        IMAGES,
    ),
}


def built(build: Build) -> Any:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = build().eval()
        scramble(model)
    return model


def logits(model: Any, inputs: dict[str, Tensor] = TOKENS) -> Tensor:
    with torch.no_grad():
        return model(**inputs).logits  # type: ignore[no-any-return]


def said_of(model: Any, plan: secateur.Plan, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        secateur.apply(model, plan, **options)
    return [str(each.message) for each in caught if issubclass(each.category, secateur.SecateurWarning)]


@pytest.mark.parametrize("name", MODELS)
def test_what_save_pretrained_writes_is_what_from_pretrained_reads(name: str, tmp_path: Path) -> None:
    build, inputs = MODELS[name]
    model = built(build)
    uncut = copy.deepcopy(model)
    plan = secateur.plan_channels(model, inputs, 0.5)
    secateur.apply(model, plan)
    cutting.cut(uncut, plan)
    assert torch.equal(logits(model, inputs), logits(uncut, inputs)), "the config changes nothing that is computed"
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(again, inputs), logits(model, inputs))


def test_the_trainer_saves_the_new_config(tmp_path: Path) -> None:
    model = built(bert)
    secateur.apply(model, secateur.plan_channels(model, TOKENS, 0.5))
    arguments = TrainingArguments(str(tmp_path / "run"), report_to="none", use_cpu=True, save_strategy="no")
    Trainer(model, arguments).save_model(str(tmp_path / "trained"))
    again = BertForSequenceClassification.from_pretrained(tmp_path / "trained").eval()
    assert (again.config.hidden_size, again.config.num_attention_heads, again.config.intermediate_size) == (16, 2, 24)
    assert torch.equal(logits(again), logits(model))


def test_the_users_config_stays_and_the_models_own_is_one_for_all_modules() -> None:
    config = BertConfig(**SMALL)
    model = BertForSequenceClassification(config).eval()
    secateur.apply(model, secateur.plan_channels(model, TOKENS, 0.5))
    assert config.hidden_size == 32, "the full-size model can be built from it"
    assert model.config.hidden_size == 16
    held = {id(module.config) for module in model.modules() if hasattr(module, "config")}
    assert held == {id(model.config)}, "what is set on the model's config reaches every layer"
    assert model.bert.encoder.layer[0].attention.self.num_attention_heads == 2


@pytest.mark.parametrize(
    ("build", "keep", "culprit"),
    [
        (bert, ["bert.embeddings.*", "*attention*"], "no number for the width of bert.pooler.dense;"),
        (
            bert,
            ["bert.embeddings.*"],
            "layer.0.attention.self.query, bert.encoder.layer.1.attention.self.query, bert.pooler",
        ),
        (
            lambda: GemmaForCausalLM(GemmaConfig(**{**SMALL, "num_hidden_layers": 1}, **CACHED, head_dim=8)),
            [],
            "model.embed_tokens.scalar_embed_scale would be another;",
        ),
    ],
    ids=["the FFN of bert", "the heads of bert", "gemma"],
)
def test_what_no_config_can_say_is_named_and_the_advice_helps(
    build: Build, keep: list[str], culprit: str, tmp_path: Path
) -> None:
    model = built(build)
    config = model.config
    plan = secateur.plan_channels(model, TOKENS, 0.5, keep=keep)
    (said,) = said_of(model, plan)
    assert culprit in said
    assert model.config is config, "half of the way would help nobody"
    secateur.save(model, plan, tmp_path)
    assert str(secateur.read_checkpoint(tmp_path).not_from_pretrained) in said

    advice = re.findall(r"'([^']+)'", said[said.index("plan with keep=") :])
    model = built(build)
    secateur.apply(model, secateur.plan_channels(model, TOKENS, 0.5, keep=[*keep, *advice]))
    model.save_pretrained(tmp_path / "kept")
    again = type(model).from_pretrained(tmp_path / "kept").eval()
    torch.testing.assert_close(logits(again), logits(model))


def test_it_is_said_once_and_later_cuts_may_mend_it() -> None:
    model = built(bert)
    residual = ["bert.embeddings.*", "*.query", "*.pooler.*"]
    halves = secateur.plan_channels(model, TOKENS, 0.5, keep=residual, per_layer={"*.layer.0.intermediate*": 0.25})
    (said,) = said_of(model, halves)
    assert "no number for the width of bert.encoder.layer" in said
    assert "which is not that of the other layers" in said
    assert not said_of(
        model, secateur.plan_channels(model, TOKENS, 0.5, keep=["bert.embeddings.*", "*.intermediate.*"])
    )
    assert model.config.intermediate_size == 48
    model = built(bert)
    uneven = {"*.layer.0.intermediate*": 0.25, "*.layer.1.intermediate*": 0.5}
    said_of(model, secateur.plan_channels(model, TOKENS, 0.5, keep=residual, per_layer=uneven))
    rest = [*residual, "*.layer.1.intermediate.*"]
    assert not said_of(model, secateur.plan_channels(model, TOKENS, 1 / 3, keep=rest))
    assert model.config.intermediate_size == 24


@pytest.mark.parametrize("verify", [None, True, False])
def test_a_loaded_plan_and_an_averaged_model_will_do(verify: bool | None) -> None:
    model = torch.optim.swa_utils.AveragedModel(built(bert))
    plan = secateur.Plan.from_json(secateur.plan_channels(model, TOKENS, 0.5).to_json())
    assert secateur.apply(model, plan, verify=verify, example_inputs=TOKENS if verify else None) is model
    assert model.module.config.hidden_size == 16
    assert logits(model).shape == (2, 2)


def test_a_model_within_the_users_own(tmp_path: Path) -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = BertModel(BertConfig(**SMALL), add_pooling_layer=False)
            self.head = nn.Linear(32, 3)

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.head(self.backbone(input_ids).last_hidden_state[:, 0])  # type: ignore[no-any-return]

    model = built(Classifier)
    secateur.apply(model, secateur.plan_channels(model, TOKENS, 0.5))
    model.backbone.save_pretrained(tmp_path)
    again = BertModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
    with torch.no_grad():
        assert torch.equal(again(**TOKENS).last_hidden_state, model.backbone(**TOKENS).last_hidden_state)


def test_what_the_loop_returns_has_the_new_config_and_keeps_what_the_user_set() -> None:
    """In mixed precision it is a copy, cut once more."""
    rows = [{"input_ids": row, "labels": torch.tensor(0)} for row in TOKENS["input_ids"]]
    model = built(bert)
    model.dropout.p = 0.25
    AcceleratorState._reset_state(reset_partial_state=True)
    result = secateur.prune(
        model,
        channels=0.5,
        repair=0,
        finetune=0,
        train_data=DataLoader(rows, 2),
        eval_data=DataLoader(rows, 2),
        accelerator=Accelerator(cpu=True, mixed_precision="bf16"),
        progress=False,
    )
    AcceleratorState._reset_state(reset_partial_state=True)
    assert result.model.config.hidden_size == 16
    assert result.model.dropout.p == 0.25
    assert model.config.hidden_size == 32


def test_a_plan_that_cannot_be_tried_out_leaves_the_config() -> None:
    model = built(bert)
    plan = replace(secateur.plan_channels(model, TOKENS, 0.5), example_inputs=None, example_form=None)
    (said,) = said_of(model, plan, verify=False)
    assert "pass example_inputs=… to apply" in said
    assert model.config.hidden_size == 32


def test_a_cut_that_fails_leaves_the_config_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(bert)
    before = [(module, dict(vars(module))) for module in model.modules()]
    plan = secateur.plan_channels(model, TOKENS, 0.5)

    def fail(*args: object) -> None:
        assert model.config.hidden_size == 16, "too early to show anything"
        raise KeyboardInterrupt

    monkeypatch.setattr(cutting, "_update_descriptions", fail)
    with pytest.raises(KeyboardInterrupt):
        secateur.apply(model, plan, verify=False)
    for module, held in before:
        assert all(vars(module)[key] is value for key, value in held.items())
    assert (model.config.hidden_size, model.config.num_attention_heads) == (32, 4)


class ScaledConfig(PreTrainedConfig):
    model_type = "scaled"
    hidden: int = 16


class Scaled(PreTrainedModel):
    """Its code computes with a width, and that cannot be seen in what a config builds."""

    config_class = ScaledConfig

    def __init__(self, config: ScaledConfig) -> None:
        super().__init__(config)
        self.inside, self.out = nn.Linear(4, config.hidden), nn.Linear(config.hidden, 2)
        self.post_init()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inside(x) * float(str(self.config.hidden)) ** 0.5)  # type: ignore[no-any-return]


@pytest.mark.parametrize("verify", [None, False])
def test_a_config_that_the_code_computes_with_stays(verify: bool | None, tmp_path: Path) -> None:
    model = built(lambda: Scaled(ScaledConfig(hidden=16)))
    x = torch.randn(3, 4)
    plan = secateur.plan_channels(model, x, 0.5)
    expected = copy.deepcopy(model)
    cutting.cut(expected, plan)
    (said,) = said_of(model, plan, verify=verify)
    assert "a number in its code would be another" in said
    assert torch.equal(model(x), expected(x))
    secateur.save(model, plan, tmp_path)
    assert not (tmp_path / "config.json").exists()
