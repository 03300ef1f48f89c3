"""Transformers on images, with tokens, windows and latents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Block, FusedAttention, Mlp
from .registry import architecture, floats, images


class PatchEmbed(nn.Module):
    """Patches by a strided convolution."""

    def __init__(self, dim: int, patch: int = 4, size: int = 16) -> None:
        super().__init__()
        self.num_patches = (size // patch) ** 2
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


@architecture("vit", images())
class ViT(nn.Module):
    """A vision transformer with a class token."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(dim)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.2)
        self.pos_embed = nn.Parameter(torch.randn(1, self.patch_embed.num_patches + 1, dim) * 0.2)
        self.blocks = nn.Sequential(Block(dim, FusedAttention(dim)), Block(dim, FusedAttention(dim)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


@architecture("deit", images())
class DeiT(nn.Module):
    """A vision transformer with two tokens and two heads."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(dim)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.2)
        self.dist_token = nn.Parameter(torch.randn(1, 1, dim) * 0.2)
        self.pos_embed = nn.Parameter(torch.randn(1, self.patch_embed.num_patches + 2, dim) * 0.2)
        self.blocks = nn.ModuleList(Block(dim, FusedAttention(dim, fused=False)) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)
        self.head_dist = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        b = x.shape[0]
        x = torch.cat((self.cls_token.expand(b, -1, -1), self.dist_token.expand(b, -1, -1), x), dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return (self.head(x[:, 0]) + self.head_dist(x[:, 1])) / 2


def window_partition(x: Tensor, size: int) -> Tensor:
    """Cut a channels-last map into windows."""
    b, h, w, c = x.shape
    x = x.view(b, h // size, size, w // size, size, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size, size, c)


def window_reverse(windows: Tensor, size: int, h: int, w: int) -> Tensor:
    """Put windows back into a map."""
    b = int(windows.shape[0] / (h * w / size / size))
    x = windows.view(b, h // size, w // size, size, size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, -1)


class WindowAttention(nn.Module):
    """Attention in a window with a relative position bias for each head."""

    def __init__(self, dim: int, window: int, num_heads: int) -> None:
        super().__init__()
        self.dim = dim
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, num_heads) * 0.2)
        grid = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        offsets = (grid[:, :, None] - grid[:, None, :]) + window - 1
        self.register_buffer("relative_position_index", offsets[0] * (2 * window - 1) + offsets[1])
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        windows, n, c = x.shape
        qkv = self.qkv(x).reshape(windows, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(n, n, -1)
        attn = q @ k.transpose(-2, -1) + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        if mask is not None:
            attn = attn.view(windows // mask.shape[0], mask.shape[0], self.num_heads, n, n)
            attn = (attn + mask.unsqueeze(1).unsqueeze(0)).view(-1, self.num_heads, n, n)
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(windows, n, c))


class SwinBlock(nn.Module):
    """Window attention, shifted in space or not."""

    def __init__(self, dim: int, size: int, window: int, shift: int) -> None:
        super().__init__()
        self.window = window
        self.shift = shift
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window, 4)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, dim * 2)
        mask = None
        if shift:
            region = torch.zeros(1, size, size, 1)
            spans = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
            for i, rows in enumerate(spans):
                for j, columns in enumerate(spans):
                    region[:, rows, columns] = 3 * i + j
            ids = window_partition(region, window).view(-1, window * window)
            mask = (ids.unsqueeze(1) != ids.unsqueeze(2)).float() * -100.0
        self.register_buffer("attn_mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        _, h, w, c = x.shape
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = window_partition(y, self.window).view(-1, self.window * self.window, c)
        windows = self.attn(windows, self.attn_mask).view(-1, self.window, self.window, c)
        y = window_reverse(windows, self.window, h, w)
        if self.shift:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    """Joins each 2×2 patch and reduces."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        return self.reduction(self.norm(torch.cat(parts, -1)))


@architecture("swin", images())
class Swin(nn.Module):
    """Two window blocks, a merge, and one more."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 16, 2, 2)
        self.stage1 = nn.Sequential(SwinBlock(16, 8, 4, 0), SwinBlock(16, 8, 4, 2))
        self.merge = PatchMerging(16)
        self.stage2 = SwinBlock(32, 4, 4, 0)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).permute(0, 2, 3, 1)
        x = self.norm(self.stage2(self.merge(self.stage1(x))))
        return self.head(x.mean(dim=(1, 2)))


class TokenPool(nn.Module):
    """A depthwise convolution over the places of each head; the class token passes beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = nn.Conv2d(width, width, 3, 2, 1, groups=width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, side: int) -> Tensor:
        token, x = torch.tensor_split(x, indices=(1,), dim=2)
        b, heads, _, width = x.shape
        x = self.pool(x.transpose(2, 3).reshape(b * heads, width, side, side))
        return self.norm(torch.cat((token, x.reshape(b, heads, width, -1).transpose(2, 3)), dim=2))


class PoolingAttention(nn.Module):
    """Attention whose queries, keys and values are pooled, with the pooled queries as a shortcut."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.head_dim, self.dim = heads, dim // heads, dim
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.pools = nn.ModuleList(TokenPool(self.head_dim) for _ in range(3))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, side: int) -> Tensor:
        b, n, _ = x.shape
        parts = self.qkv(x).reshape(b, n, 3, self.heads, self.head_dim).transpose(1, 3).unbind(dim=2)
        q, k, v = (pool(part, side) for pool, part in zip(self.pools, parts, strict=True))
        x = (self.scale * q @ k.transpose(2, 3)).softmax(-1) @ v
        x[:, :, 1:, :] += q[:, :, 1:, :]
        return self.proj(x.transpose(1, 2).reshape(b, -1, self.dim))


@architecture("mvit", images())
class MViT(nn.Module):
    """Multiscale attention: places are pooled from block to block."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(dim)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.2)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.attention, self.mlp = PoolingAttention(dim), Mlp(dim, 64)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.attention(self.norms[0](x), 4)
        return self.head((x + self.mlp(self.norms[1](x)))[:, 0])


class MixerBlock(nn.Module):
    """An MLP over tokens, then one over channels."""

    def __init__(self, dim: int, tokens: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.mlp_tokens = Mlp(tokens, 24)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp_channels = Mlp(dim, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp_channels(self.norm2(x))


@architecture("mlp_mixer", images())
class MlpMixer(nn.Module):
    """Patches, mixer blocks, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = PatchEmbed(32)
        self.blocks = nn.Sequential(MixerBlock(32, 16), MixerBlock(32, 16))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x))).mean(dim=1))


class SpatialGating(nn.Module):
    """Gates one half of the channels by the other, mixed over positions."""

    def __init__(self, dim: int, tokens: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(tokens, tokens)

    def forward(self, x: Tensor) -> Tensor:
        u, v = x.chunk(2, dim=-1)
        v = self.proj(self.norm(v).transpose(-1, -2))
        return u * v.transpose(-1, -2)


class GMlpBlock(nn.Module):
    """Expand, gate, project."""

    def __init__(self, dim: int, hidden: int, tokens: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj_in = nn.Linear(dim, hidden)
        self.gate = SpatialGating(hidden // 2, tokens)
        self.proj_out = nn.Linear(hidden // 2, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.proj_out(self.gate(F.gelu(self.proj_in(self.norm(x)))))


@architecture("gmlp", images())
class GMlp(nn.Module):
    """Patches and gated MLP blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = PatchEmbed(32)
        self.blocks = nn.Sequential(GMlpBlock(32, 64, 16), GMlpBlock(32, 64, 16))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean(1))


class CrossAttention(nn.Module):
    """Queries from one sequence, keys and values from another by one fused layer."""

    def __init__(self, dim: int, context: int, heads: int = 4, dim_head: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(context, heads * dim_head * 2, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        b, n, _ = x.shape
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, t.shape[1], self.heads, -1).transpose(1, 2) for t in (self.to_q(x), k, v))
        attn = ((q @ k.transpose(-1, -2)) * self.scale).softmax(dim=-1)
        return self.to_out((attn @ v).transpose(1, 2).reshape(b, n, -1))


@architecture("perceiver", floats(2, 20, 12))
class Perceiver(nn.Module):
    """Learnt latents read a long input, then attend to themselves."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, dim))
        self.embed = nn.Linear(12, 24)
        self.cross = CrossAttention(dim, 24)
        self.block = Block(dim, FusedAttention(dim))
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        context = self.embed(x)
        latents = self.latents.unsqueeze(0).expand(x.shape[0], -1, -1)
        latents = latents + self.cross(latents, context)
        return self.head(self.block(latents).mean(dim=1))


@architecture("detr", images())
class DETR(nn.Module):
    """A convolutional backbone, an encoder, and learnt queries through a decoder."""

    def __init__(self, dim: int = 32, queries: int = 5, classes: int = 4) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, 2, 1), nn.ReLU())
        self.input_proj = nn.Conv2d(24, dim, 1)
        self.row_embed = nn.Parameter(torch.rand(8, dim // 2))
        self.col_embed = nn.Parameter(torch.rand(8, dim // 2))
        self.query_embed = nn.Embedding(queries, dim)
        self.transformer = nn.Transformer(dim, 4, 1, 1, 48, batch_first=True)
        self.class_embed = nn.Linear(dim, classes + 1)
        self.bbox_embed = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.input_proj(self.backbone(x))
        b, _, rows, columns = h.shape
        pos = torch.cat(
            [
                self.col_embed[:columns].unsqueeze(0).repeat(rows, 1, 1),
                self.row_embed[:rows].unsqueeze(1).repeat(1, columns, 1),
            ],
            dim=-1,
        )
        source = h.flatten(2).permute(0, 2, 1) + pos.flatten(0, 1).unsqueeze(0)
        out = self.transformer(source, self.query_embed.weight.unsqueeze(0).repeat(b, 1, 1))
        return {"pred_logits": self.class_embed(out), "pred_boxes": self.bbox_embed(out).sigmoid()}


class EfficientSelfAttention(nn.Module):
    """SegFormer's: keys and values from a reduced map."""

    def __init__(self, dim: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, dim * 2)
        self.sr = nn.Conv2d(dim, dim, reduction, reduction)
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, h: int, w: int) -> Tensor:
        b, n, c = x.shape
        q = self.q(x).reshape(b, n, self.num_heads, c // self.num_heads).permute(0, 2, 1, 3)
        small = self.sr(x.permute(0, 2, 1).reshape(b, c, h, w)).reshape(b, c, -1).permute(0, 2, 1)
        kv = self.kv(self.norm(small)).reshape(b, -1, 2, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, kv[0], kv[1])
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


@architecture("segformer", images())
class SegFormer(nn.Module):
    """Reduced attention, a mixing MLP with a depthwise convolution, a map out."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 3, 2, 1)
        self.attn = EfficientSelfAttention(dim, 4, 2)
        self.fc1 = nn.Linear(dim, 64)
        self.dwconv = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.fc2 = nn.Linear(64, dim)
        self.out = nn.Conv2d(dim, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        b, c, h, w = x.shape
        x = x.flatten(2).transpose(1, 2)
        x = x + self.attn(x, h, w)
        y = self.fc1(x).transpose(1, 2).reshape(b, -1, h, w)
        x = x + self.fc2(F.gelu(self.dwconv(y).flatten(2).transpose(1, 2)))
        return self.out(x.transpose(1, 2).reshape(b, c, h, w))
