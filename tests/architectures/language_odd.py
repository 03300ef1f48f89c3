"""Language models with biased positions, routed experts and state spaces."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .language import LM, RMSNorm, SwiGLU
from .registry import architecture, floats, tokens


class T5Attention(nn.Module):
    """Unscaled attention with a bucketed relative bias for each head; its inner width is its own."""

    def __init__(self, dim: int, heads: int = 4, d_kv: int = 8, buckets: int = 8) -> None:
        super().__init__()
        self.n_heads = heads
        self.key_value_proj_dim = d_kv
        self.inner_dim = heads * d_kv
        self.num_buckets = buckets
        self.q = nn.Linear(dim, self.inner_dim, bias=False)
        self.k = nn.Linear(dim, self.inner_dim, bias=False)
        self.v = nn.Linear(dim, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, dim, bias=False)
        self.relative_attention_bias = nn.Embedding(buckets, heads)

    def compute_bias(self, length: int, device: torch.device) -> Tensor:
        positions = torch.arange(length, device=device)
        distance = (positions[:, None] - positions[None, :]).abs().clamp(max=self.num_buckets - 1)
        return self.relative_attention_bias(distance).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape[:2]

        def shape(states: Tensor) -> Tensor:
            return states.view(batch, -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)

        scores = torch.matmul(shape(self.q(x)), shape(self.k(x)).transpose(3, 2))
        scores += self.compute_bias(length, x.device)
        out = torch.matmul(F.softmax(scores, dim=-1), shape(self.v(x)))
        return self.o(out.transpose(1, 2).contiguous().view(batch, -1, self.inner_dim))


@architecture("t5_relative_bias", tokens())
def t5_relative_bias() -> nn.Module:
    """Build T5 attention narrower than the model."""
    return LM(T5Attention(48), SwiGLU(48, 64), T5Attention(48), dim=48, rms=True)


class AlibiAttention(nn.Module):
    """A slope for each head in a buffer, and a fused projection laid out by heads."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.num_heads = heads
        self.head_dim = dim // heads
        self.hidden_size = dim
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.dense = nn.Linear(dim, dim)
        self.register_buffer("slopes", 2.0 ** -torch.arange(1, heads + 1).float())

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        fused = self.query_key_value(x).view(b, n, self.num_heads, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))
        positions = torch.arange(n, device=x.device)
        distance = (positions[None, :] - positions[:, None]).to(x.dtype)
        bias = self.slopes.view(1, -1, 1, 1) * distance
        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(self.head_dim) + bias).masked_fill(causal, float("-inf"))
        out = (scores.softmax(-1) @ v).permute(0, 2, 1, 3)
        return self.dense(out.reshape(b, n, self.num_heads * self.head_dim))


@architecture("alibi", tokens())
def alibi() -> nn.Module:
    """Build attention with linear biases."""
    return LM(AlibiAttention(32), nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), AlibiAttention(32))


class Expert(nn.Module):
    """One expert's MLP."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class SoftMoE(nn.Module):
    """Every expert sees every token, and a softmax weighs them."""

    def __init__(self, dim: int, experts: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(Expert(dim, 32) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(dim=-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (outputs * weights.unsqueeze(-2)).sum(dim=-1)


@architecture("moe_soft", tokens())
def moe_soft() -> nn.Module:
    """Build mixtures of all experts."""
    return LM(SoftMoE(32), SoftMoE(32))


class TopKMoE(nn.Module):
    """Routes each token to its best experts, one expert after the other."""

    def __init__(self, dim: int, experts: int = 4, top_k: int = 2) -> None:
        super().__init__()
        self.num_experts = experts
        self.top_k = top_k
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(Expert(dim, 32) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        flat = x.view(-1, d)
        weights, chosen = torch.topk(self.gate(flat).softmax(dim=-1), self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows, ranks = torch.where(chosen == i)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(flat[rows]) * weights[rows, ranks, None])
        return out.view(b, n, d)


@architecture("moe_top_k", tokens())
def moe_top_k() -> nn.Module:
    """Build routed mixtures."""
    return LM(TopKMoE(32), TopKMoE(32))


class BatchedMoE(nn.Module):
    """All experts' weights in one tensor each, applied by bmm."""

    def __init__(self, dim: int, hidden: int = 32, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.gate_up_proj = nn.Parameter(torch.randn(experts, dim, 2 * hidden) * 0.2)
        self.down_proj = nn.Parameter(torch.randn(experts, hidden, dim) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        flat = x.reshape(-1, d)
        scores = self.router(flat).softmax(-1)
        repeated = flat.unsqueeze(0).expand(self.gate_up_proj.shape[0], -1, -1)
        gate, up = torch.bmm(repeated, self.gate_up_proj).chunk(2, dim=-1)
        out = torch.bmm(up * F.silu(gate), self.down_proj)
        return (out * scores.t().unsqueeze(-1)).sum(0).view(b, n, d)


@architecture("moe_batched", tokens())
def moe_batched() -> nn.Module:
    """Build mixtures whose experts share one three-dimensional weight."""
    return LM(BatchedMoE(32), BatchedMoE(32), rms=True)


class MambaBlock(nn.Module):
    """A selective state space layer with its scan written as a loop."""

    def __init__(self, dim: int, d_state: int = 4, expand: int = 2, dt_rank: int = 4, d_conv: int = 3) -> None:
        super().__init__()
        self.d_inner = dim * expand
        self.d_state = d_state
        self.dt_rank = dt_rank
        self.in_proj = nn.Linear(dim, self.d_inner * 2, bias=False)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(self.d_inner, dt_rank + d_state * 2, bias=False)
        self.dt_proj = nn.Linear(dt_rank, self.d_inner)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, d_state + 1).float().repeat(self.d_inner, 1)))
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, dim, bias=False)

    def scan(self, x: Tensor) -> Tensor:
        dt, b, c = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        delta = F.softplus(self.dt_proj(dt))
        decay = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.A_log))
        update = delta.unsqueeze(-1) * b.unsqueeze(2) * x.unsqueeze(-1)
        state = torch.zeros(x.shape[0], self.d_inner, self.d_state, device=x.device, dtype=x.dtype)
        outputs = []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + update[:, t]
            outputs.append(torch.einsum("bdn,bn->bd", state, c[:, t]))
        return torch.stack(outputs, dim=1) + x * self.D

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        inner, z = self.in_proj(x).chunk(2, dim=-1)
        inner = self.conv1d(inner.transpose(1, 2))[:, :, :length].transpose(1, 2)
        return self.out_proj(self.scan(F.silu(inner)) * F.silu(z))


@architecture("mamba", tokens(length=8))
def mamba() -> nn.Module:
    """Build two state space layers."""
    return LM(MambaBlock(32), MambaBlock(32), rms=True)


class MambaSplit(MambaBlock):
    """The same, its input projection split by sizes held as an attribute."""

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        inner, z = self.in_proj(x).split([self.d_inner, self.d_inner], dim=-1)
        inner = self.conv1d(inner.transpose(1, 2))[..., :length].transpose(1, 2)
        return self.out_proj(self.scan(F.silu(inner)) * F.silu(z))


@architecture("mamba_split", tokens(length=8))
def mamba_split() -> nn.Module:
    """Build a state space layer that splits by attributes."""
    return LM(MambaSplit(32), rms=True)


class RetentionBlock(nn.Module):
    """A linear recurrence with a fixed decay for each head and a norm over groups of channels."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim * 2, bias=False)
        self.g = nn.Linear(dim, dim * 2, bias=False)
        self.norm = nn.GroupNorm(heads, dim * 2)
        self.out = nn.Linear(dim * 2, dim, bias=False)
        self.register_buffer("decay", 1 - 2.0 ** -(2.0 + torch.arange(heads).float()))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (layer(x).view(b, n, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        positions = torch.arange(n, device=x.device)
        distance = (positions[:, None] - positions[None, :]).to(x.dtype)
        weights = torch.where(distance >= 0, self.decay.view(-1, 1, 1) ** distance.clamp(min=0), 0.0)
        y = ((q @ k.transpose(-1, -2)) * weights) @ v
        y = y.transpose(1, 2).reshape(b * n, -1)
        return self.out(self.norm(y).view(b, n, -1) * F.silu(self.g(x)))


@architecture("retention", tokens())
def retention() -> nn.Module:
    """Build a retention layer and an MLP."""
    return LM(RetentionBlock(32), SwiGLU(32, 48))


class LatentAttention(nn.Module):
    """DeepSeek's: keys and values rise from a low-rank latent, with a few shared rotary channels."""

    def __init__(self, dim: int, heads: int = 4, rank: int = 16, nope: int = 8, rope: int = 4, v_dim: int = 8) -> None:
        super().__init__()
        self.num_heads = heads
        self.kv_lora_rank = rank
        self.qk_nope_head_dim = nope
        self.qk_rope_head_dim = rope
        self.v_head_dim = v_dim
        self.q_proj = nn.Linear(dim, heads * (nope + rope), bias=False)
        self.kv_a_proj = nn.Linear(dim, rank + rope, bias=False)
        self.kv_a_norm = RMSNorm(rank)
        self.kv_b_proj = nn.Linear(rank, heads * (nope + v_dim), bias=False)
        self.o_proj = nn.Linear(heads * v_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, -1).transpose(1, 2)
        latent, k_rope = self.kv_a_proj(x).split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        kv = self.kv_b_proj(self.kv_a_norm(latent)).view(b, n, self.num_heads, -1).transpose(1, 2)
        k_nope, v = kv.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        k_rope = k_rope.view(b, n, 1, self.qk_rope_head_dim).transpose(1, 2)
        k = torch.cat([k_nope, k_rope.expand(-1, self.num_heads, -1, -1)], dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, self.num_heads * self.v_head_dim))


@architecture("latent_attention", tokens())
def latent_attention() -> nn.Module:
    """Build latent attention and a gated MLP."""
    return LM(LatentAttention(32), SwiGLU(32, 64), LatentAttention(32), rms=True)


class LoRALinear(nn.Module):
    """A frozen layer with a low-rank update beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_a = nn.Linear(inputs, rank, bias=False)
        self.lora_b = nn.Linear(rank, outputs, bias=False)
        self.scaling = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.lora_b(self.lora_a(x)) * self.scaling


@architecture("lora", floats(3, 12))
def lora() -> nn.Module:
    """Build an MLP of low-rank adapted layers."""
    return nn.Sequential(LoRALinear(12, 32), nn.ReLU(), LoRALinear(32, 48), nn.ReLU(), nn.Linear(48, 10))
