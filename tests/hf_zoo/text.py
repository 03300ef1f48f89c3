"""Text encoders, decoders and encoder-decoders."""

from __future__ import annotations

from tests.hf_zoo.registry import (
    BART,
    BERT,
    LLAMA,
    SPECIAL,
    T5,
    WIDTH,
    Sizes,
    add,
    first_of,
    floats,
    ids,
    pair,
    text,
    tokens,
)

# The tables below stay as dense as a table should.
# fmt: off


def text_encoders() -> None:
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
        extra: Sizes = {
            "rembert": {"input_embedding_size": 16},
            "tapas": {"type_vocab_sizes": [3] * 7},
            # As in the real model: each table of coordinates has 4/3 as many rows as the model is wide.
            "layoutlm": {"max_2d_position_embeddings": 43, "intermediate_size": 128},
            # As in the real one: images have 2/3 as many features as the model is wide.
            "visual_bert": {"visual_embedding_dim": 21, "intermediate_size": 128},
        }.get(name, {})
        add(name, model, text, **{**BERT, **extra})
    add("big_bird", "BigBirdModel", text, **BERT, attention_type="original_full")
    add("big_bird_sparse", "BigBirdModel", lambda: {"input_ids": ids(2, 64)}, **BERT, block_size=4,
         num_random_blocks=2)
    add("esm", "EsmForMaskedLM", text, **BERT, pad_token_id=1, mask_token_id=3, position_embedding_type="rotary")
    add("distilbert", "DistilBertForSequenceClassification", text, vocab_size=99, dim=32, n_layers=2, n_heads=4,
         hidden_dim=64, max_position_embeddings=64)
    add("albert", "AlbertForMaskedLM", text, **BERT, embedding_size=16)
    add("electra", "ElectraForPreTraining", text, **BERT, embedding_size=16)
    add("deberta", "DebertaForSequenceClassification", text, **BERT, relative_attention=True,
         pos_att_type=["c2p", "p2c"])
    add("deberta_v2", "DebertaV2ForSequenceClassification", text, **BERT, relative_attention=True,
         pos_att_type=["c2p", "p2c"], position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True)
    add("mobilebert", "MobileBertForMaskedLM", text, **BERT, embedding_size=32, intra_bottleneck_size=32,
         true_hidden_size=32, num_feedforward_networks=2)
    add("squeezebert", "SqueezeBertForSequenceClassification", text, **BERT, embedding_size=32, q_groups=2,
         k_groups=2, v_groups=2, post_attention_groups=1, intermediate_groups=4, output_groups=4)
    add("fnet", "FNetForMaskedLM", tokens, hidden_size=32, num_hidden_layers=2, intermediate_size=64, vocab_size=99,
         max_position_embeddings=64)
    add("funnel", "FunnelForSequenceClassification", text, vocab_size=99, block_sizes=[1, 1], num_decoder_layers=1,
         d_model=32, n_head=4, d_head=8, d_inner=64)
    add("xlnet", "XLNetLMHeadModel", text, vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=64)
    add("xlm", "XLMWithLMHeadModel", text, vocab_size=99, emb_dim=32, n_layers=2, n_heads=4,
         max_position_embeddings=64)
    add("flaubert", "FlaubertModel", text, vocab_size=99, emb_dim=32, n_layers=2, n_heads=4,
         max_position_embeddings=64)
    add("convbert", "ConvBertForMaskedLM", text, **BERT, embedding_size=32)
    add("modernbert", "ModernBertForMaskedLM", text, **BERT, **SPECIAL, cls_token_id=1, sep_token_id=2,
         local_attention=8, global_attn_every_n_layers=2)
    add("eurobert", "EuroBertModel", text, **LLAMA, **SPECIAL)
    add("nomic_bert", "NomicBertModel", text, **BERT)
    # The first token looks at all others, as Longformer is used: otherwise half of its layers do not run.
    add("longformer", "LongformerForMaskedLM", lambda: {**text(), "global_attention_mask": first_of(12)}, **BERT,
         attention_window=[4, 4], **SPECIAL)
    add("roformer", "RoFormerForMaskedLM", text, **BERT, embedding_size=32)
    add("canine", "CanineModel", lambda: {"input_ids": ids(2, 16)}, **WIDTH, intermediate_size=64,
         max_position_embeddings=64, num_hash_buckets=32, local_transformer_stride=16)
    add("luke", "LukeModel", text, **BERT, entity_vocab_size=20, entity_emb_size=16)
    add("bros", "BrosModel", lambda: {**text(), "bbox": floats(2, 12, 8).sigmoid()}, **{**BERT, "hidden_size": 64})
    # Tables of coordinates of 4/3 as many rows as the model is wide, as in the real one.
    add("layoutlmv3", "LayoutLMv3Model", text, **{**BERT, "intermediate_size": 128}, visual_embed=False,
         max_2d_position_embeddings=43, coordinate_size=4, shape_size=8,
         rel_pos_bins=8, max_rel_pos=16, rel_2d_pos_bins=8, max_rel_2d_pos=16, **SPECIAL)
    add("lilt", "LiltModel", text, **{**BERT, "hidden_size": 48}, channel_shrink_ratio=2)
    add("reformer", "ReformerModel", lambda: {"input_ids": ids(2, 16)}, vocab_size=99, hidden_size=32,
         attention_head_size=8, num_attention_heads=4, feed_forward_size=64, attn_layers=["local", "local"],
         local_attn_chunk_length=4, axial_pos_shape=[4, 4], axial_pos_embds_dim=[16, 16], max_position_embeddings=16)


def decoders() -> None:
    gpt2: Sizes = {"vocab_size": 99, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    add("gpt2", "GPT2LMHeadModel", tokens, **gpt2)
    add("openai_gpt", "OpenAIGPTLMHeadModel", tokens, **gpt2)
    add("gpt_bigcode", "GPTBigCodeForCausalLM", tokens, **gpt2)
    add("gptj", "GPTJForCausalLM", tokens, **gpt2, rotary_dim=4)
    add("codegen", "CodeGenForCausalLM", tokens, **gpt2, rotary_dim=4, n_ctx=64)
    add("ctrl", "CTRLLMHeadModel", tokens, vocab_size=99, n_positions=64, n_embd=32, n_layer=2, n_head=4, dff=64)
    add("gpt_neo", "GPTNeoForCausalLM", tokens, vocab_size=99, hidden_size=32, num_layers=2, num_heads=4,
         intermediate_size=64, attention_types=[[["global", "local"], 1]], max_position_embeddings=64, window_size=8)
    add("gpt_neox", "GPTNeoXForCausalLM", tokens, **BERT)
    add("gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM", tokens, **{k: v for k, v in BERT.items()
         if k != "intermediate_size"}, intermediate_multiple_size=2)
    add("opt", "OPTForCausalLM", tokens, vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
         ffn_dim=64, word_embed_proj_dim=16, max_position_embeddings=64)
    add("bloom", "BloomForCausalLM", tokens, vocab_size=99, hidden_size=32, n_layer=2, n_head=4)
    add("mpt", "MptForCausalLM", tokens, vocab_size=99, d_model=32, n_layers=2, n_heads=4, max_seq_len=64,
         expansion_ratio=2)
    add("xglm", "XGLMForCausalLM", tokens, vocab_size=99, d_model=32, num_layers=2, attention_heads=4, ffn_dim=64,
         max_position_embeddings=64)
    add("biogpt", "BioGptForCausalLM", tokens, **BERT)
    add("falcon", "FalconForCausalLM", tokens, **WIDTH, vocab_size=99)
    add("falcon_new", "FalconForCausalLM", tokens, **WIDTH, vocab_size=99, new_decoder_architecture=True,
         num_kv_heads=2)
    add("persimmon", "PersimmonForCausalLM", tokens, **BERT)
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
        add(name, model, tokens, **LLAMA, **SPECIAL)
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
        add(name, model, tokens, **LLAMA, **SPECIAL, head_dim=8 if name in ("exaone4", "helium") else 16)
    add("modernbert_decoder", "ModernBertDecoderForCausalLM", tokens, **BERT, **SPECIAL, cls_token_id=1,
         sep_token_id=2, local_attention=8)


def encoder_decoders() -> None:
    add("t5", "T5ForConditionalGeneration", pair, **T5)
    add("mt5", "MT5ForConditionalGeneration", pair, **T5)
    add("umt5", "UMT5ForConditionalGeneration", pair, **T5)
    add("t5_encoder", "T5EncoderModel", text, **T5)
    add("longt5", "LongT5ForConditionalGeneration", pair, **T5, local_radius=3)
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
        add(name, model, pair, **BART)
    add("bigbird_pegasus", "BigBirdPegasusForConditionalGeneration", pair, **BART, attention_type="original_full")
    add("marian", "MarianMTModel", pair, **BART, pad_token_id=0)
    add("led", "LEDForConditionalGeneration", pair,
         **{k: v for k, v in BART.items() if k != "max_position_embeddings"}, max_encoder_position_embeddings=64,
         max_decoder_position_embeddings=64, attention_window=4)
    add("fsmt", "FSMTForConditionalGeneration", pair, **{k: v for k, v in BART.items() if k != "vocab_size"},
         src_vocab_size=99, tgt_vocab_size=99, langs=["en", "de"])
    add("prophetnet", "ProphetNetForConditionalGeneration", pair, vocab_size=99, hidden_size=32,
         num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4,
         # The proportions of the real model: 4 times the width, half of it over the heads, and half of it.
         encoder_ffn_dim=128, decoder_ffn_dim=128, num_buckets=4, max_position_embeddings=16)
