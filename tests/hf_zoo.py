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


def _add(name: str, model: str, inputs: Inputs, **sizes: Any) -> None:
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


def _ids(*shape: int, vocabulary: int = 99, seed: int = 0) -> Tensor:
    return torch.randint(4, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def _floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _text() -> dict[str, Tensor]:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    return {"input_ids": _ids(2, 12), "attention_mask": mask}


def _tokens() -> dict[str, Tensor]:
    return {"input_ids": _ids(2, 12)}


def _pair() -> dict[str, Tensor]:
    return {"input_ids": _ids(2, 12), "decoder_input_ids": _ids(2, 7, seed=1)}


def _image(size: int = 32, channels: int = 3) -> Inputs:
    return lambda: {"pixel_values": _floats(2, channels, size, size)}


def _wave(length: int = 800) -> Inputs:
    return lambda: {"input_values": _floats(2, length)}


def _image_and_text(size: int = 32) -> Inputs:
    return lambda: {"input_ids": _ids(2, 8), "pixel_values": _floats(2, 3, size, size)}


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


# The tables below stay as dense as a table should.
# fmt: off


def _image_encoders() -> None:
    image = _image()
    _add("vit", "ViTForImageClassification", image, **VIT)
    _add("deit", "DeiTForImageClassification", image, **VIT)
    _add("beit", "BeitForImageClassification", image, **VIT, use_relative_position_bias=True)
    _add("vit_msn", "ViTMSNForImageClassification", image, **VIT)
    _add("dinov2", "Dinov2ForImageClassification", image, **WIDTH, image_size=32, patch_size=8)
    _add("dinov2_with_registers", "Dinov2WithRegistersModel", image, **WIDTH, image_size=32, patch_size=8)
    _add("dinov3_vit", "DINOv3ViTModel", image, **VIT)
    _add("ijepa", "IJepaModel", image, **VIT)
    _add("yolos", "YolosForObjectDetection", image, **{**VIT, "image_size": [32, 32]}, num_detection_tokens=5)
    _add("vitdet", "VitDetModel", image, **WIDTH, image_size=32, patch_size=8, pretrain_image_size=32)
    _add("dpt", "DPTForDepthEstimation", image, **{**VIT, "num_hidden_layers": 4}, backbone_out_indices=[0, 1, 2, 3],
         neck_hidden_sizes=[16, 16, 32, 32], fusion_hidden_size=16)
    _add("siglip_vision", "SiglipVisionModel", image, **VIT)
    _add("imagegpt", "ImageGPTModel", _tokens, vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    swin = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}
    _add("swin", "SwinForImageClassification", image, **swin)
    _add("swinv2", "Swinv2ForImageClassification", image, **swin)
    _add("swin2sr", "Swin2SRForImageSuperResolution", _image(16), image_size=16, embed_dim=16, depths=[1, 1],
         num_heads=[2, 2], window_size=4)
    _add("focalnet", "FocalNetForImageClassification", image, image_size=32, embed_dim=16, depths=[1, 1],
         focal_levels=[2, 2], focal_windows=[3, 3])
    _add("hiera", "HieraForImageClassification", image, embed_dim=16, image_size=[32, 32], patch_stride=[4, 4],
         patch_size=[7, 7], patch_padding=[3, 3], mlp_ratio=2.0, depths=[1, 1, 1], num_heads=[2, 4, 8],
         embed_dim_multiplier=2.0, num_query_pool=2, query_stride=[2, 2], masked_unit_size=[4, 4],
         masked_unit_attention=[True, True, False])
    _add("segformer", "SegformerForSemanticSegmentation", image, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1],
         hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2],
         decoder_hidden_size=16)
    _add("glpn", "GLPNForDepthEstimation", image, depths=[1, 1, 1, 1], hidden_sizes=[16, 16, 32, 32],
         num_attention_heads=[2, 2, 4, 4], mlp_ratios=[2, 2, 2, 2], decoder_hidden_size=16)
    _add("pvt", "PvtForImageClassification", image, image_size=32, hidden_sizes=[16, 32], num_encoder_blocks=2,
         depths=[1, 1], sequence_reduction_ratios=[2, 1], patch_sizes=[4, 2], strides=[4, 2],
         num_attention_heads=[2, 4], mlp_ratios=[2, 2])
    _add("pvt_v2", "PvtV2ForImageClassification", image, image_size=32, num_encoder_blocks=2, depths=[1, 1],
         sr_ratios=[2, 1], hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4],
         mlp_ratios=[2, 2])
    _add("cvt", "CvtForImageClassification", image, patch_sizes=[7, 3, 3], patch_stride=[4, 2, 2],
         embed_dim=[16, 32, 32], num_heads=[1, 2, 4], depth=[1, 2, 3], mlp_ratio=[2.0, 2.0, 2.0])
    _add("levit", "LevitForImageClassification", _image(64), image_size=64, hidden_sizes=[32, 48, 64],
         num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8], mlp_ratio=[2, 2, 2],
         attention_ratio=[2, 2, 2])
    _add("poolformer", "PoolFormerForImageClassification", image, hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1])
    _add("mobilevit", "MobileViTForImageClassification", _image(64), image_size=64, hidden_sizes=[32, 48, 64],
         neck_hidden_sizes=[16, 16, 24, 32, 32, 48, 64])
    _add("mobilevitv2", "MobileViTV2ForImageClassification", _image(64), image_size=64, width_multiplier=0.25)
    _add("swiftformer", "SwiftFormerForImageClassification", _image(64), image_size=64, depths=[1, 1, 1, 1],
         embed_dims=[16, 16, 32, 32], mlp_ratio=2)
    _add("vit_mae", "ViTMAEModel", lambda: {**image(), "noise": _floats(2, 16, seed=1)}, **VIT)
    _add("videomae", "VideoMAEForVideoClassification", lambda: {"pixel_values": _floats(1, 4, 3, 32, 32)}, **VIT,
         num_frames=4)
    _add("vivit", "VivitModel", lambda: {"pixel_values": _floats(1, 4, 3, 32, 32)}, **WIDTH, intermediate_size=64,
         image_size=32, num_frames=4, tubelet_size=[2, 16, 16])
    _add("timesformer", "TimesformerModel", lambda: {"pixel_values": _floats(1, 2, 3, 32, 32)}, **VIT, num_frames=2)


def _image_convolutions() -> None:
    image = _image()
    stages: Sizes = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
    _add("convnext", "ConvNextForImageClassification", image, **stages)
    _add("convnextv2", "ConvNextV2ForImageClassification", image, **stages)
    _add("dinov3_convnext", "DINOv3ConvNextModel", image, **stages)
    _add("resnet", "ResNetForImageClassification", image, embedding_size=16, hidden_sizes=[32, 64], depths=[1, 2])
    _add("resnet_basic", "ResNetForImageClassification", image, embedding_size=16, hidden_sizes=[16, 32],
         depths=[1, 2], layer_type="basic")
    _add("regnet", "RegNetForImageClassification", image, embedding_size=16, hidden_sizes=[16, 32, 32, 48],
         depths=[1, 1, 1, 1], groups_width=8)
    _add("bit", "BitForImageClassification", image, embedding_size=16, hidden_sizes=[32, 32, 64, 64],
         depths=[1, 1, 1, 1], num_groups=8)
    _add("mobilenet_v1", "MobileNetV1ForImageClassification", image, depth_multiplier=0.25, min_depth=8)
    _add("mobilenet_v2", "MobileNetV2ForImageClassification", image, depth_multiplier=0.35, last_hidden_size=64)
    _add("efficientnet", "EfficientNetForImageClassification", image, image_size=32, width_coefficient=0.3,
         depth_coefficient=0.2, hidden_dim=384)
    _add("hgnet_v2", "HGNetV2ForImageClassification", image, stem_channels=[3, 8, 16], hidden_sizes=[16, 24, 32, 48],
         stage_in_channels=[16, 16, 24, 32], stage_mid_channels=[8, 8, 16, 16], stage_out_channels=[16, 24, 32, 48],
         stage_num_blocks=[1, 1, 1, 1], stage_numb_of_layers=[2, 2, 2, 2], depths=[1, 1, 1, 1])
    _add("textnet", "TextNetForImageClassification", image, stem_out_channels=16, hidden_sizes=[16, 16, 24, 32, 48],
         conv_layer_kernel_sizes=[[[3, 3]], [[3, 3]], [[3, 3]], [[3, 1]]], conv_layer_strides=[[1], [2], [2], [2]])
    _add("superpoint", "SuperPointForKeypointDetection", image, encoder_hidden_sizes=[16, 16, 32, 32],
         decoder_hidden_size=32, descriptor_decoder_dim=32)
    resnet = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}
    detr: Sizes = {
        **{key: value for key, value in BART.items() if key not in ("vocab_size", "max_position_embeddings")},
        "num_queries": 5,
        "use_timm_backbone": False,
        "use_pretrained_backbone": False,
        "backbone": None,
    }
    _add("detr", "DetrForObjectDetection", _image(64), **detr,
         backbone_config={**resnet, "out_features": ["stage4"]})
    _add("conditional_detr", "ConditionalDetrForObjectDetection", _image(64), **detr,
         backbone_config={**resnet, "out_features": ["stage4"]})
    _add("table_transformer", "TableTransformerForObjectDetection", _image(64), **detr,
         backbone_config={**resnet, "out_features": ["stage4"]})
    swin = {"model_type": "swin", "image_size": 64, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 4, 4],
            "window_size": 2, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
    _add("upernet", "UperNetForSemanticSegmentation", _image(64), backbone_config=swin, hidden_size=16,
         use_auxiliary_head=False, pool_scales=[1, 2])


def _text_encoders() -> None:
    for name, model in {
        "bert": "BertForSequenceClassification",
        "roberta": "RobertaForMaskedLM",
        "xlm_roberta": "XLMRobertaForTokenClassification",
        "camembert": "CamembertModel",
        "data2vec_text": "Data2VecTextModel",
        "roberta_prelayernorm": "RobertaPreLayerNormModel",
        "ernie": "ErnieForMaskedLM",
        "megatron_bert": "MegatronBertModel",
        "mpnet": "MPNetForMaskedLM",
        "nystromformer": "NystromformerModel",
        "splinter": "SplinterModel",
        "layoutlm": "LayoutLMModel",
        "visual_bert": "VisualBertModel",
        "yoso": "YosoModel",
        "rembert": "RemBertModel",
        "ibert": "IBertModel",
        "bert_generation": "BertGenerationEncoder",
        "tapas": "TapasModel",
    }.items():
        extra: Sizes = {"rembert": {"input_embedding_size": 16}, "tapas": {"type_vocab_sizes": [3] * 7}}.get(name, {})
        _add(name, model, _text, **{**BERT, **extra})
    _add("big_bird", "BigBirdModel", _text, **BERT, attention_type="original_full")
    _add("big_bird_sparse", "BigBirdModel", lambda: {"input_ids": _ids(2, 64)}, **BERT, block_size=4,
         num_random_blocks=2)
    _add("esm", "EsmForMaskedLM", _text, **BERT, pad_token_id=1, mask_token_id=3, position_embedding_type="rotary")
    _add("distilbert", "DistilBertForSequenceClassification", _text, vocab_size=99, dim=32, n_layers=2, n_heads=4,
         hidden_dim=64, max_position_embeddings=64)
    _add("albert", "AlbertForMaskedLM", _text, **BERT, embedding_size=16)
    _add("electra", "ElectraForPreTraining", _text, **BERT, embedding_size=16)
    _add("deberta", "DebertaForSequenceClassification", _text, **BERT, relative_attention=True,
         pos_att_type=["c2p", "p2c"])
    _add("deberta_v2", "DebertaV2ForSequenceClassification", _text, **BERT, relative_attention=True,
         pos_att_type=["c2p", "p2c"], position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True)
    _add("mobilebert", "MobileBertForMaskedLM", _text, **BERT, embedding_size=32, intra_bottleneck_size=32,
         true_hidden_size=32, num_feedforward_networks=2)
    _add("squeezebert", "SqueezeBertForSequenceClassification", _text, **BERT, embedding_size=32, q_groups=2,
         k_groups=2, v_groups=2, post_attention_groups=1, intermediate_groups=4, output_groups=4)
    _add("fnet", "FNetForMaskedLM", _tokens, hidden_size=32, num_hidden_layers=2, intermediate_size=64, vocab_size=99,
         max_position_embeddings=64)
    _add("funnel", "FunnelForSequenceClassification", _text, vocab_size=99, block_sizes=[1, 1], num_decoder_layers=1,
         d_model=32, n_head=4, d_head=8, d_inner=64)
    _add("xlnet", "XLNetLMHeadModel", _text, vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=64)
    _add("xlm", "XLMWithLMHeadModel", _text, vocab_size=99, emb_dim=32, n_layers=2, n_heads=4,
         max_position_embeddings=64)
    _add("flaubert", "FlaubertModel", _text, vocab_size=99, emb_dim=32, n_layers=2, n_heads=4,
         max_position_embeddings=64)
    _add("convbert", "ConvBertForMaskedLM", _text, **BERT, embedding_size=32)
    _add("modernbert", "ModernBertForMaskedLM", _text, **BERT, **SPECIAL, cls_token_id=1, sep_token_id=2,
         local_attention=8, global_attn_every_n_layers=2)
    _add("eurobert", "EuroBertModel", _text, **LLAMA, **SPECIAL)
    _add("nomic_bert", "NomicBertModel", _text, **BERT)
    _add("longformer", "LongformerForMaskedLM", _text, **BERT, attention_window=[4, 4], **SPECIAL)
    _add("roformer", "RoFormerForMaskedLM", _text, **BERT, embedding_size=32)
    _add("canine", "CanineModel", lambda: {"input_ids": _ids(2, 16)}, **WIDTH, intermediate_size=64,
         max_position_embeddings=64, num_hash_buckets=32, local_transformer_stride=16)
    _add("luke", "LukeModel", _text, **BERT, entity_vocab_size=20, entity_emb_size=16)
    _add("bros", "BrosModel", lambda: {**_text(), "bbox": _floats(2, 12, 8).sigmoid()}, **{**BERT, "hidden_size": 64})
    _add("layoutlmv3", "LayoutLMv3Model", _text, **BERT, visual_embed=False, coordinate_size=4, shape_size=8,
         rel_pos_bins=8, max_rel_pos=16, rel_2d_pos_bins=8, max_rel_2d_pos=16, **SPECIAL)
    _add("lilt", "LiltModel", _text, **{**BERT, "hidden_size": 48}, channel_shrink_ratio=2)
    _add("reformer", "ReformerModel", lambda: {"input_ids": _ids(2, 16)}, vocab_size=99, hidden_size=32,
         attention_head_size=8, num_attention_heads=4, feed_forward_size=64, attn_layers=["local", "local"],
         local_attn_chunk_length=4, axial_pos_shape=[4, 4], axial_pos_embds_dim=[16, 16], max_position_embeddings=16)


def _decoders() -> None:
    gpt2: Sizes = {"vocab_size": 99, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    _add("gpt2", "GPT2LMHeadModel", _tokens, **gpt2)
    _add("openai_gpt", "OpenAIGPTLMHeadModel", _tokens, **gpt2)
    _add("gpt_bigcode", "GPTBigCodeForCausalLM", _tokens, **gpt2)
    _add("gptj", "GPTJForCausalLM", _tokens, **gpt2, rotary_dim=4)
    _add("codegen", "CodeGenForCausalLM", _tokens, **gpt2, rotary_dim=4, n_ctx=64)
    _add("ctrl", "CTRLLMHeadModel", _tokens, vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4, dff=64)
    _add("gpt_neo", "GPTNeoForCausalLM", _tokens, vocab_size=99, hidden_size=32, num_layers=2, num_heads=4,
         intermediate_size=64, attention_types=[[["global", "local"], 1]], max_position_embeddings=64, window_size=8)
    _add("gpt_neox", "GPTNeoXForCausalLM", _tokens, **BERT)
    _add("gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM", _tokens, **{k: v for k, v in BERT.items()
         if k != "intermediate_size"}, intermediate_multiple_size=2)
    _add("opt", "OPTForCausalLM", _tokens, vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
         ffn_dim=64, word_embed_proj_dim=16, max_position_embeddings=64)
    _add("bloom", "BloomForCausalLM", _tokens, vocab_size=99, hidden_size=32, n_layer=2, n_head=4)
    _add("mpt", "MptForCausalLM", _tokens, vocab_size=99, d_model=32, n_layers=2, n_heads=4, max_seq_len=64,
         expansion_ratio=2)
    _add("xglm", "XGLMForCausalLM", _tokens, vocab_size=99, d_model=32, num_layers=2, attention_heads=4, ffn_dim=64,
         max_position_embeddings=64)
    _add("biogpt", "BioGptForCausalLM", _tokens, **BERT)
    _add("falcon", "FalconForCausalLM", _tokens, **WIDTH, vocab_size=99)
    _add("falcon_new", "FalconForCausalLM", _tokens, **WIDTH, vocab_size=99, new_decoder_architecture=True,
         num_kv_heads=2)
    _add("persimmon", "PersimmonForCausalLM", _tokens, **BERT)
    for name, model in {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "phi": "PhiForCausalLM",
        "phi3": "Phi3ForCausalLM",
        "stablelm": "StableLmForCausalLM",
        "olmo": "OlmoForCausalLM",
        "olmo2": "Olmo2ForCausalLM",
        "cohere": "CohereForCausalLM",
        "cohere2": "Cohere2ForCausalLM",
        "granite": "GraniteForCausalLM",
        "starcoder2": "Starcoder2ForCausalLM",
        "nemotron": "NemotronForCausalLM",
        "smollm3": "SmolLM3ForCausalLM",
        "arcee": "ArceeForCausalLM",
        "ernie4_5": "Ernie4_5ForCausalLM",
        "diffllama": "DiffLlamaForCausalLM",
        "bitnet": "BitNetForCausalLM",
    }.items():
        _add(name, model, _tokens, **LLAMA, **SPECIAL)
    for name, model in {
        "qwen3": "Qwen3ForCausalLM",
        "gemma": "GemmaForCausalLM",
        "gemma2": "Gemma2ForCausalLM",
        "gemma3": "Gemma3ForCausalLM",
        "glm": "GlmForCausalLM",
        "glm4": "Glm4ForCausalLM",
        "helium": "HeliumForCausalLM",
        "seed_oss": "SeedOssForCausalLM",
        "exaone4": "Exaone4ForCausalLM",
        "apertus": "ApertusForCausalLM",
    }.items():
        _add(name, model, _tokens, **LLAMA, **SPECIAL, head_dim=8 if name in ("exaone4", "helium") else 16)
    _add("modernbert_decoder", "ModernBertDecoderForCausalLM", _tokens, **BERT, **SPECIAL, cls_token_id=1,
         sep_token_id=2, local_attention=8)


def _experts() -> None:
    _add("mixtral", "MixtralForCausalLM", _tokens, **LLAMA, num_local_experts=4, num_experts_per_tok=2)
    _add("phimoe", "PhimoeForCausalLM", _tokens, **LLAMA, num_local_experts=4, num_experts_per_tok=2)
    _add("gpt_oss", "GptOssForCausalLM", _tokens, **LLAMA, head_dim=8, num_local_experts=4, num_experts_per_tok=2)
    _add("granitemoe", "GraniteMoeForCausalLM", _tokens, **LLAMA, num_local_experts=4, num_experts_per_tok=2)
    _add("olmoe", "OlmoeForCausalLM", _tokens, **LLAMA, num_experts=4, num_experts_per_tok=2)
    _add("qwen2_moe", "Qwen2MoeForCausalLM", _tokens, **MOE, num_experts=4, shared_expert_intermediate_size=32)
    _add("qwen3_moe", "Qwen3MoeForCausalLM", _tokens, **MOE, num_experts=4, head_dim=8)
    _add("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", _tokens, **LLAMA, moe_num_experts=4,
         moe_k=2, moe_intermediate_size=32, moe_layer_start_index=1)
    latent: Sizes = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
                     "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 4,
                     "qk_nope_head_dim": 8, "v_head_dim": 8}
    _add("deepseek_v2", "DeepseekV2ForCausalLM", _tokens, **{**MOE, "num_key_value_heads": 4}, **latent)
    _add("deepseek_v3", "DeepseekV3ForCausalLM", _tokens, **{**MOE, "num_key_value_heads": 4}, **latent)
    _add("dbrx", "DbrxForCausalLM", _tokens, vocab_size=99, d_model=32, n_layers=2, n_heads=4, max_seq_len=64,
         attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
         ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32})
    _add("jetmoe", "JetMoeForCausalLM", _tokens, vocab_size=99, hidden_size=32, num_hidden_layers=2,
         num_key_value_heads=2, kv_channels=8, intermediate_size=64, max_position_embeddings=64, num_local_experts=4)
    _add("switch_transformers", "SwitchTransformersForConditionalGeneration", _pair, **T5, num_sparse_encoder_layers=1,
         num_sparse_decoder_layers=1, num_decoder_layers=2, num_experts=4, decoder_start_token_id=0)


def _recurrences() -> None:
    state: Sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    _add("mamba", "MambaForCausalLM", _tokens, **state)
    _add("falcon_mamba", "FalconMambaForCausalLM", _tokens, **state)
    _add("mamba2", "Mamba2ForCausalLM", _tokens, **state, num_heads=8, head_dim=8, n_groups=2, chunk_size=8)
    _add("rwkv", "RwkvForCausalLM", _tokens, vocab_size=99, hidden_size=32, attention_hidden_size=32,
         num_hidden_layers=2, intermediate_size=64, context_length=64)
    _add("recurrent_gemma", "RecurrentGemmaForCausalLM", _tokens, **LLAMA, lru_width=32, head_dim=8,
         attention_window_size=8, block_types=["recurrent", "attention"])
    _add("jamba", "JambaForCausalLM", _tokens, **LLAMA, attn_layer_period=2, attn_layer_offset=1,
         expert_layer_period=2, expert_layer_offset=1, num_experts=4, mamba_d_state=8)
    _add("bamba", "BambaForCausalLM", _tokens, **LLAMA, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8,
         mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=8)
    _add("lfm2", "Lfm2ForCausalLM", _tokens, **LLAMA, layer_types=["conv", "full_attention"], block_multiple_of=16)
    _add("zamba2", "Zamba2ForCausalLM", _tokens, **LLAMA, mamba_d_state=8, n_mamba_heads=8, mamba_ngroups=2,
         chunk_size=8, layers_block_type=["mamba", "hybrid"], hybrid_layer_ids=[1], num_mem_blocks=1,
         use_mem_rope=True, adapter_rank=8)
    _add("xlstm", "xLSTMForCausalLM", _tokens, vocab_size=99, hidden_size=32, num_heads=4, num_hidden_layers=2,
         chunk_size=4)
    _add("qwen3_next", "Qwen3NextForCausalLM", _tokens, **MOE, head_dim=16, num_experts=4,
         shared_expert_intermediate_size=32, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
         linear_num_value_heads=4, layer_types=["linear_attention", "full_attention"])
    _add("granitemoehybrid", "GraniteMoeHybridForCausalLM", _tokens, **LLAMA, num_local_experts=4,
         num_experts_per_tok=2, shared_intermediate_size=32, layer_types=["mamba", "attention"], mamba_n_heads=8,
         mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=8)
    _add("falcon_h1", "FalconH1ForCausalLM", _tokens, **LLAMA, head_dim=8, mamba_d_ssm=64, mamba_n_heads=8,
         mamba_d_head=8, mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=8)


def _encoder_decoders() -> None:
    _add("t5", "T5ForConditionalGeneration", _pair, **T5)
    _add("mt5", "MT5ForConditionalGeneration", _pair, **T5)
    _add("umt5", "UMT5ForConditionalGeneration", _pair, **T5)
    _add("t5_encoder", "T5EncoderModel", _text, **T5)
    _add("longt5", "LongT5ForConditionalGeneration", _pair, **T5, local_radius=3)
    for name, model in {
        "bart": "BartForConditionalGeneration",
        "mbart": "MBartForConditionalGeneration",
        "pegasus": "PegasusForConditionalGeneration",
        "plbart": "PLBartForConditionalGeneration",
        "blenderbot": "BlenderbotForConditionalGeneration",
        "m2m_100": "M2M100ForConditionalGeneration",
        "mvp": "MvpForConditionalGeneration",
        "pegasus_x": "PegasusXForConditionalGeneration",
    }.items():
        _add(name, model, _pair, **BART)
    _add("bigbird_pegasus", "BigBirdPegasusForConditionalGeneration", _pair, **BART, attention_type="original_full")
    _add("marian", "MarianMTModel", _pair, **BART, pad_token_id=0)
    _add("led", "LEDForConditionalGeneration", _pair,
         **{k: v for k, v in BART.items() if k != "max_position_embeddings"}, max_encoder_position_embeddings=64,
         max_decoder_position_embeddings=64, attention_window=4)
    _add("fsmt", "FSMTForConditionalGeneration", _pair, **{k: v for k, v in BART.items() if k != "vocab_size"},
         src_vocab_size=99, tgt_vocab_size=99, langs=["en", "de"])
    _add("prophetnet", "ProphetNetForConditionalGeneration", _pair, vocab_size=99, hidden_size=32,
         num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4,
         encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64)


def _audio() -> None:
    speech: Sizes = {**WIDTH, "intermediate_size": 64, "vocab_size": 32, "conv_dim": (16, 16, 24),
                     "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
                     "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
    for name, model in {
        "wav2vec2": "Wav2Vec2ForCTC",
        "hubert": "HubertForSequenceClassification",
        "wavlm": "WavLMModel",
        "unispeech": "UniSpeechModel",
        "unispeech_sat": "UniSpeechSatModel",
        "wav2vec2_conformer": "Wav2Vec2ConformerModel",
    }.items():
        _add(name, model, _wave(), **speech)
    _add("data2vec_audio", "Data2VecAudioModel", _wave(), **{**speech, "num_conv_pos_embeddings": 2},
         conv_pos_kernel_size=5)
    _add("wav2vec2_stable", "Wav2Vec2Model", _wave(), **speech, do_stable_layer_norm=True, feat_extract_norm="layer")
    _add("sew", "SEWForCTC", _wave(), **speech, squeeze_factor=2)
    _add("sew_d", "SEWDModel", _wave(), **speech, squeeze_factor=2, max_position_embeddings=64, position_buckets=8)
    _add("wav2vec2_bert", "Wav2Vec2BertModel", lambda: {"input_features": _floats(2, 12, 16)}, **WIDTH,
         intermediate_size=64, feature_projection_input_dim=16, conv_depthwise_kernel_size=5)
    _add("ast", "ASTForAudioClassification", lambda: {"input_values": _floats(2, 24, 16)}, **WIDTH,
         intermediate_size=64, patch_size=4, frequency_stride=4, time_stride=4, max_length=24, num_mel_bins=16)
    whisper = {k: v for k, v in BART.items() if k != "max_position_embeddings"}
    _add("whisper", "WhisperForConditionalGeneration",
         lambda: {"input_features": _floats(2, 16, 40), "decoder_input_ids": _ids(2, 6)}, **whisper, **SPECIAL,
         num_mel_bins=16, max_source_positions=20, max_target_positions=16, decoder_start_token_id=1)
    _add("speech_to_text", "Speech2TextForConditionalGeneration",
         lambda: {"input_features": _floats(2, 40, 16), "decoder_input_ids": _ids(2, 6)},
         **whisper, input_feat_per_channel=16, conv_channels=32, max_source_positions=64, max_target_positions=32)
    _add("moonshine", "MoonshineForConditionalGeneration",
         lambda: {"input_values": _floats(2, 2000), "decoder_input_ids": _ids(2, 6)}, vocab_size=99, hidden_size=32,
         intermediate_size=64, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
         encoder_num_attention_heads=4, decoder_num_attention_heads=4, max_position_embeddings=64)
    _add("encodec", "EncodecModel", lambda: {"input_values": _floats(1, 1, 640)}, num_filters=8, hidden_size=16,
         codebook_size=16, upsampling_ratios=[4, 2], sampling_rate=800, target_bandwidths=[0.4, 0.8])
    _add("dac", "DacModel", lambda: {"input_values": _floats(1, 1, 64)}, encoder_hidden_size=8, decoder_hidden_size=32,
         downsampling_ratios=[2, 4], upsampling_ratios=[4, 2], n_codebooks=2, codebook_size=16, codebook_dim=4)
    _add("univnet", "UnivNetModel", lambda: {"input_features": _floats(1, 12, 16), "noise_sequence":
         _floats(1, 12, 16, seed=1)}, model_in_channels=16, model_hidden_channels=16, num_mel_bins=16,
         resblock_kernel_sizes=[3, 3], resblock_stride_sizes=[4, 4], resblock_dilation_sizes=[[1, 3], [1, 3]],
         kernel_predictor_hidden_channels=16)


def _multimodal() -> None:
    text: Sizes = {**BERT, **SPECIAL}
    vision: Sizes = {**VIT}
    both: Sizes = {"text_config": text, "vision_config": vision, "projection_dim": 16}
    pair = _image_and_text()
    _add("clip", "CLIPModel", pair, **both)
    _add("siglip", "SiglipModel", pair, text_config={**text, "projection_size": 32}, vision_config=vision)
    _add("altclip", "AltCLIPModel", pair, **{**both, "text_config": {**text, "project_dim": 32}})
    _add("chinese_clip", "ChineseCLIPModel", pair, **both)
    _add("x_clip", "XCLIPModel", lambda: {"input_ids": _ids(1, 8), "pixel_values": _floats(1, 2, 3, 32, 32)},
         text_config=text, vision_config={**vision, "num_frames": 2, "mit_hidden_size": 32, "mit_intermediate_size": 64,
         "mit_num_hidden_layers": 1, "mit_num_attention_heads": 4}, projection_dim=32, prompt_layers=1,
         prompt_num_attention_heads=4)
    _add("clipseg", "CLIPSegForImageSegmentation", pair, text_config=text, vision_config=vision, projection_dim=32,
         extract_layers=[0, 1], reduce_dim=16, decoder_num_attention_heads=4, decoder_intermediate_size=32)
    _add("groupvit", "GroupViTModel", pair, text_config=text, vision_config={"hidden_size": 32,
         "intermediate_size": 64, "depths": [1, 1, 1], "num_group_tokens": [6, 4, 0],
         "num_output_groups": [6, 4, 4], "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
         projection_dim=16, projection_intermediate_dim=32)
    _add("owlvit", "OwlViTForObjectDetection", pair, **{**both, "projection_dim": 32})
    _add("owlv2", "Owlv2ForObjectDetection", pair, **{**both, "projection_dim": 32})
    _add("blip", "BlipForImageTextRetrieval", pair, text_config={**text, "encoder_hidden_size": 32,
         "projection_dim": 32}, vision_config=vision, projection_dim=32, image_text_hidden_size=16)
    _add("vilt", "ViltModel", _image_and_text(8), **{**BERT, **VIT, "image_size": 8}, modality_type_vocab_size=2)
    _add("git", "GitForCausalLM", pair, **BERT, vision_config=vision)
    _add("flava", "FlavaModel", pair, text_config=BERT, image_config=VIT, multimodal_config={**WIDTH,
         "intermediate_size": 64}, hidden_size=32, projection_dim=16)
    _add("clap_text", "ClapTextModelWithProjection", _text, **BERT, projection_dim=16)
    _add("align_text", "AlignTextModel", _text, **BERT)

    def llava() -> dict[str, Tensor]:
        ids = _ids(1, 24, vocabulary=90)
        ids[:, 2:18] = 98
        return {"input_ids": ids, "pixel_values": _floats(1, 3, 32, 32)}

    llama_text = {"model_type": "llama", **LLAMA}
    _add("llava", "LlavaForConditionalGeneration", llava, text_config=llama_text,
         vision_config={"model_type": "clip_vision_model", **VIT}, image_token_index=98, image_token_id=98)
    _add("paligemma", "PaliGemmaForConditionalGeneration", llava, text_config={"model_type": "gemma", **LLAMA,
         "head_dim": 8}, vision_config={"model_type": "siglip_vision_model", **VIT, "vision_use_head": False},
         image_token_index=98, image_token_id=98, projection_dim=32)


def _others() -> None:
    _add("patchtst", "PatchTSTForPrediction", lambda: {"past_values": _floats(2, 32, 3)}, num_input_channels=3,
         context_length=32, patch_length=8, patch_stride=8, num_hidden_layers=2, d_model=32, num_attention_heads=4,
         ffn_dim=64, prediction_length=8)
    _add("patchtsmixer", "PatchTSMixerForPrediction", lambda: {"past_values": _floats(2, 32, 3)},
         num_input_channels=3, context_length=32, patch_length=8, patch_stride=8, num_layers=2, d_model=16,
         prediction_length=8, mode="mix_channel", gated_attn=True)

    def series() -> dict[str, Tensor]:
        return {
            "past_values": _floats(2, 14),
            "past_time_features": _floats(2, 14, 2, seed=1),
            "past_observed_mask": torch.ones(2, 14),
            "future_values": _floats(2, 4, seed=2),
            "future_time_features": _floats(2, 4, 2, seed=3),
        }

    forecast: Sizes = {k: v for k, v in BART.items() if k not in ("vocab_size", "max_position_embeddings")}
    forecast |= {"prediction_length": 4, "context_length": 10, "lags_sequence": [1, 2, 4], "num_time_features": 2}
    _add("time_series_transformer", "TimeSeriesTransformerModel", series, **forecast)
    _add("informer", "InformerModel", series, **forecast)
    _add("autoformer", "AutoformerModel", series, **forecast, label_length=4, moving_average=3)

    def decisions() -> dict[str, Tensor]:
        return {
            "states": _floats(2, 5, 6),
            "actions": _floats(2, 5, 3, seed=1),
            "rewards": _floats(2, 5, 1, seed=2),
            "returns_to_go": _floats(2, 5, 1, seed=3),
            "timesteps": torch.arange(5).expand(2, 5).clone(),
            "attention_mask": torch.ones(2, 5, dtype=torch.long),
        }

    _add("decision_transformer", "DecisionTransformerModel", decisions, state_dim=6, act_dim=3, max_ep_len=16,
         hidden_size=32, n_layer=2, n_head=4, n_positions=32, vocab_size=1)
    _add("perceiver", "PerceiverForMaskedLM", lambda: {"inputs": _ids(2, 12)}, num_latents=8, d_latents=32,
         d_model=24, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=4,
         num_cross_attention_heads=4, qk_channels=32, v_channels=32, vocab_size=99, max_position_embeddings=12)
    _add("fastspeech2_conformer", "FastSpeech2ConformerModel", _tokens, hidden_size=32, vocab_size=99,
         num_mel_bins=16, encoder_num_attention_heads=4, encoder_layers=1, encoder_linear_units=32, decoder_layers=1,
         decoder_num_attention_heads=4, decoder_linear_units=32, speech_decoder_postnet_units=16,
         duration_predictor_channels=16, pitch_predictor_channels=16, energy_predictor_channels=16)


# fmt: on

for _family in (
    _image_encoders,
    _image_convolutions,
    _text_encoders,
    _decoders,
    _experts,
    _recurrences,
    _encoder_decoders,
    _audio,
    _multimodal,
    _others,
):
    _family()
