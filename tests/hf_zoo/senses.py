"""Audio, several senses at once, time series and the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.hf_zoo.registry import (
    BART,
    BERT,
    LLAMA,
    SPECIAL,
    VIT,
    WIDTH,
    Sizes,
    add,
    floats,
    ids,
    image_and_text,
    text,
    tokens,
    wave,
)

# The tables below stay as dense as a table should.
# fmt: off


def audio() -> None:
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
        inner = 128 if name == "wavlm" else 64  # as in the real one, where little else can shrink
        add(name, model, wave(), **{**speech, "intermediate_size": inner})
    add("data2vec_audio", "Data2VecAudioModel", wave(), **{**speech, "num_conv_pos_embeddings": 2},
         conv_pos_kernel_size=5)
    add("wav2vec2_stable", "Wav2Vec2Model", wave(), **speech, do_stable_layer_norm=True, feat_extract_norm="layer")
    add("sew", "SEWForCTC", wave(), **speech, squeeze_factor=2)
    add("sew_d", "SEWDModel", wave(), **speech, squeeze_factor=2, max_position_embeddings=64, position_buckets=8)
    add("wav2vec2_bert", "Wav2Vec2BertModel", lambda: {"input_features": floats(2, 12, 16)}, **WIDTH,
         intermediate_size=64, feature_projection_input_dim=16, conv_depthwise_kernel_size=5)
    add("ast", "ASTForAudioClassification", lambda: {"input_values": floats(2, 24, 16)}, **WIDTH,
         intermediate_size=64, patch_size=4, frequency_stride=4, time_stride=4, max_length=24, num_mel_bins=16)
    whisper = {k: v for k, v in BART.items() if k != "max_position_embeddings"}
    add("whisper", "WhisperForConditionalGeneration",
         lambda: {"input_features": floats(2, 16, 40), "decoder_input_ids": ids(2, 6)}, **whisper, **SPECIAL,
         num_mel_bins=16, max_source_positions=20, max_target_positions=16, decoder_start_token_id=1)
    add("speech_to_text", "Speech2TextForConditionalGeneration",
         lambda: {"input_features": floats(2, 40, 16), "decoder_input_ids": ids(2, 6)},
         **whisper, input_feat_per_channel=16, conv_channels=32, max_source_positions=64, max_target_positions=32)
    add("moonshine", "MoonshineForConditionalGeneration",
         lambda: {"input_values": floats(2, 2000), "decoder_input_ids": ids(2, 6)}, vocab_size=99, hidden_size=32,
         intermediate_size=64, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
         encoder_num_attention_heads=4, decoder_num_attention_heads=4, max_position_embeddings=64)
    add("encodec", "EncodecModel", lambda: {"input_values": floats(1, 1, 640)}, num_filters=8, hidden_size=16,
         codebook_size=16, upsampling_ratios=[4, 2], sampling_rate=800, target_bandwidths=[0.4, 0.8])
    add("dac", "DacModel", lambda: {"input_values": floats(1, 1, 64)}, encoder_hidden_size=8, decoder_hidden_size=32,
         downsampling_ratios=[2, 4], upsampling_ratios=[4, 2], n_codebooks=2, codebook_size=16, codebook_dim=4)
    add("univnet", "UnivNetModel", lambda: {"input_features": floats(1, 12, 16), "noise_sequence":
         floats(1, 12, 16, seed=1)}, model_in_channels=16, model_hidden_channels=16, num_mel_bins=16,
         resblock_kernel_sizes=[3, 3], resblock_stride_sizes=[4, 4], resblock_dilation_sizes=[[1, 3], [1, 3]],
         kernel_predictor_hidden_channels=16)


def multimodal() -> None:
    words: Sizes = {**BERT, **SPECIAL}
    vision: Sizes = {**VIT}
    both: Sizes = {"text_config": words, "vision_config": vision, "projection_dim": 16}
    pair = image_and_text()
    add("clip", "CLIPModel", pair, **both)
    add("siglip", "SiglipModel", pair, text_config={**words, "projection_size": 32}, vision_config=vision)
    add("altclip", "AltCLIPModel", pair, **{**both, "text_config": {**words, "project_dim": 32}})
    add("chinese_clip", "ChineseCLIPModel", pair, **both)
    add("x_clip", "XCLIPModel", lambda: {"input_ids": ids(1, 8), "pixel_values": floats(1, 2, 3, 32, 32)},
         text_config=words, vision_config={**vision, "num_frames": 2, "mit_hidden_size": 32,
         "mit_intermediate_size": 64,
         "mit_num_hidden_layers": 1, "mit_num_attention_heads": 4}, projection_dim=32, prompt_layers=1,
         prompt_num_attention_heads=4)
    add("clipseg", "CLIPSegForImageSegmentation", pair, text_config=words, vision_config=vision, projection_dim=32,
         extract_layers=[0, 1], reduce_dim=16, decoder_num_attention_heads=4, decoder_intermediate_size=32)
    add("groupvit", "GroupViTModel", pair, text_config=words, vision_config={"hidden_size": 32,
         "intermediate_size": 64, "depths": [1, 1, 1], "num_group_tokens": [6, 4, 0],
         "num_output_groups": [6, 4, 4], "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
         projection_dim=16, projection_intermediate_dim=32)
    add("owlvit", "OwlViTForObjectDetection", pair, **{**both, "projection_dim": 32})
    add("owlv2", "Owlv2ForObjectDetection", pair, **{**both, "projection_dim": 32})
    add("blip", "BlipForImageTextRetrieval", pair, text_config={**words, "encoder_hidden_size": 32,
         "projection_dim": 32}, vision_config=vision, projection_dim=32, image_text_hidden_size=16)
    add("vilt", "ViltModel", image_and_text(8), **{**BERT, **VIT, "image_size": 8}, modality_type_vocab_size=2)
    add("git", "GitForCausalLM", pair, **BERT, vision_config=vision)
    add("flava", "FlavaModel", pair, text_config=BERT, image_config=VIT, multimodal_config={**WIDTH,
         "intermediate_size": 64}, hidden_size=32, projection_dim=16)
    add("clap_text", "ClapTextModelWithProjection", text, **BERT, projection_dim=16)
    add("align_text", "AlignTextModel", text, **BERT)

    def llava() -> dict[str, Tensor]:
        tokens_and_image = ids(1, 24, vocabulary=90)
        tokens_and_image[:, 2:18] = 98
        return {"input_ids": tokens_and_image, "pixel_values": floats(1, 3, 32, 32)}

    llama_text = {"model_type": "llama", **LLAMA}
    add("llava", "LlavaForConditionalGeneration", llava, text_config=llama_text,
         vision_config={"model_type": "clip_vision_model", **VIT}, image_token_index=98, image_token_id=98)
    add("paligemma", "PaliGemmaForConditionalGeneration", llava, text_config={"model_type": "gemma", **LLAMA,
         "head_dim": 8}, vision_config={"model_type": "siglip_vision_model", **VIT, "vision_use_head": False},
         image_token_index=98, image_token_id=98, projection_dim=32)


def others() -> None:
    add("patchtst", "PatchTSTForPrediction", lambda: {"past_values": floats(2, 32, 3)}, num_input_channels=3,
         context_length=32, patch_length=8, patch_stride=8, num_hidden_layers=2, d_model=32, num_attention_heads=4,
         ffn_dim=64, prediction_length=8)
    add("patchtsmixer", "PatchTSMixerForPrediction", lambda: {"past_values": floats(2, 32, 3)},
         num_input_channels=3, context_length=32, patch_length=8, patch_stride=8, num_layers=2, d_model=16,
         prediction_length=8, mode="mix_channel", gated_attn=True)

    def series() -> dict[str, Tensor]:
        return {
            "past_values": floats(2, 14),
            "past_time_features": floats(2, 14, 2, seed=1),
            "past_observed_mask": torch.ones(2, 14),
            "future_values": floats(2, 4, seed=2),
            "future_time_features": floats(2, 4, 2, seed=3),
        }

    forecast: Sizes = {k: v for k, v in BART.items() if k not in ("vocab_size", "max_position_embeddings")}
    forecast |= {"prediction_length": 4, "context_length": 10, "lags_sequence": [1, 2, 4], "num_time_features": 2}
    add("time_series_transformer", "TimeSeriesTransformerModel", series, **forecast)
    add("informer", "InformerModel", series, **forecast)
    add("autoformer", "AutoformerModel", series, **forecast, label_length=4, moving_average=3)

    def decisions() -> dict[str, Tensor]:
        return {
            "states": floats(2, 5, 6),
            "actions": floats(2, 5, 3, seed=1),
            "rewards": floats(2, 5, 1, seed=2),
            "returns_to_go": floats(2, 5, 1, seed=3),
            "timesteps": torch.arange(5).expand(2, 5).clone(),
            "attention_mask": torch.ones(2, 5, dtype=torch.long),
        }

    add("decision_transformer", "DecisionTransformerModel", decisions, state_dim=6, act_dim=3, max_ep_len=16,
         hidden_size=32, n_layer=2, n_head=4, n_positions=32, vocab_size=1)
    add("perceiver", "PerceiverForMaskedLM", lambda: {"inputs": ids(2, 12)}, num_latents=8, d_latents=32,
         d_model=24, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=4,
         num_cross_attention_heads=4, qk_channels=32, v_channels=32, vocab_size=99, max_position_embeddings=12)
    add("fastspeech2_conformer", "FastSpeech2ConformerModel", tokens, hidden_size=32, vocab_size=99,
         num_mel_bins=16, encoder_num_attention_heads=4, encoder_layers=1, encoder_linear_units=32, decoder_layers=1,
         decoder_num_attention_heads=4, decoder_linear_units=32, speech_decoder_postnet_units=16,
         duration_predictor_channels=16, pitch_predictor_channels=16, energy_predictor_channels=16)
