"""Mixtures of experts and recurrences."""

from __future__ import annotations

from tests.hf_zoo.registry import LLAMA, MOE, T5, Sizes, add, pair, tokens

# The tables below stay as dense as a table should.
# fmt: off


def experts() -> None:
    add("mixtral", "MixtralForCausalLM", tokens, **LLAMA, num_local_experts=4, num_experts_per_tok=2)
    add("phimoe", "PhimoeForCausalLM", tokens, **LLAMA, num_local_experts=4, num_experts_per_tok=2)
    add("gpt_oss", "GptOssForCausalLM", tokens, **LLAMA, head_dim=8, num_local_experts=4, num_experts_per_tok=2)
    add("granitemoe", "GraniteMoeForCausalLM", tokens, **LLAMA, num_local_experts=4, num_experts_per_tok=2)
    add("olmoe", "OlmoeForCausalLM", tokens, **LLAMA, num_experts=4, num_experts_per_tok=2)
    add("qwen2_moe", "Qwen2MoeForCausalLM", tokens, **MOE, num_experts=4, shared_expert_intermediate_size=32)
    add("qwen3_moe", "Qwen3MoeForCausalLM", tokens, **MOE, num_experts=4, head_dim=8)
    add("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", tokens, **LLAMA, moe_num_experts=4,
         moe_k=2, moe_intermediate_size=32, moe_layer_start_index=1)
    latent: Sizes = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
                     "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 4,
                     "qk_nope_head_dim": 8, "v_head_dim": 8}
    add("deepseek_v2", "DeepseekV2ForCausalLM", tokens, **{**MOE, "num_key_value_heads": 4}, **latent)
    add("deepseek_v3", "DeepseekV3ForCausalLM", tokens, **{**MOE, "num_key_value_heads": 4}, **latent)
    add("dbrx", "DbrxForCausalLM", tokens, vocab_size=99, d_model=32, n_layers=2, n_heads=4, max_seq_len=64,
         attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
         ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32})
    add("jetmoe", "JetMoeForCausalLM", tokens, vocab_size=99, hidden_size=32, num_hidden_layers=2,
         num_key_value_heads=2, kv_channels=8, intermediate_size=64, max_position_embeddings=64, num_local_experts=4)
    add("switch_transformers", "SwitchTransformersForConditionalGeneration", pair, **T5, num_sparse_encoder_layers=1,
         num_sparse_decoder_layers=1, num_decoder_layers=2, num_experts=4, decoder_start_token_id=0)


def recurrences() -> None:
    state: Sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    add("mamba", "MambaForCausalLM", tokens, **state)
    add("falcon_mamba", "FalconMambaForCausalLM", tokens, **state)
    add("mamba2", "Mamba2ForCausalLM", tokens, **state, num_heads=8, head_dim=8, n_groups=2, chunk_size=8)
    add("rwkv", "RwkvForCausalLM", tokens, vocab_size=99, hidden_size=32, attention_hidden_size=32,
         num_hidden_layers=2, intermediate_size=64, context_length=64)
    add("recurrent_gemma", "RecurrentGemmaForCausalLM", tokens, **LLAMA, lru_width=32, head_dim=8,
         attention_window_size=8, block_types=["recurrent", "attention"])
    add("jamba", "JambaForCausalLM", tokens, **LLAMA, attn_layer_period=2, attn_layer_offset=1,
         expert_layer_period=2, expert_layer_offset=1, num_experts=4, mamba_d_state=8)
    add("bamba", "BambaForCausalLM", tokens, **LLAMA, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8,
         mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=8)
    add("lfm2", "Lfm2ForCausalLM", tokens, **LLAMA, layer_types=["conv", "full_attention"], block_multiple_of=16)
    add("zamba2", "Zamba2ForCausalLM", tokens, **LLAMA, mamba_d_state=8, n_mamba_heads=8, mamba_ngroups=2,
         chunk_size=8, layers_block_type=["mamba", "hybrid"], hybrid_layer_ids=[1], num_mem_blocks=1,
         use_mem_rope=True, adapter_rank=8)
    add("xlstm", "xLSTMForCausalLM", tokens, vocab_size=99, hidden_size=32, num_heads=4, num_hidden_layers=2,
         chunk_size=4)
    add("qwen3_next", "Qwen3NextForCausalLM", tokens, **MOE, head_dim=16, num_experts=4,
         shared_expert_intermediate_size=32, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
         linear_num_value_heads=4, layer_types=["linear_attention", "full_attention"])
    add("granitemoehybrid", "GraniteMoeHybridForCausalLM", tokens, **LLAMA, num_local_experts=4,
         num_experts_per_tok=2, shared_intermediate_size=32, layer_types=["mamba", "attention"], mamba_n_heads=8,
         mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=8)
    add("falcon_h1", "FalconH1ForCausalLM", tokens, **LLAMA, head_dim=8, mamba_d_ssm=64, mamba_n_heads=8,
         mamba_d_head=8, mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=8)
