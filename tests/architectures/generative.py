"""Autoencoders, generators and diffusion models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cnn import conv_bn
from .registry import architecture, floats, images, together


@architecture("vae", images(1, 16))
class VAE(nn.Module):
    """An autoencoder whose latent is split into mean and log variance."""

    def __init__(self, latent: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            conv_bn(1, 16, 3, 2), conv_bn(16, 24, 3, 2), nn.Flatten(), nn.Linear(24 * 16, 2 * latent)
        )
        self.fc = nn.Linear(latent, 24 * 4 * 4)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(24, 16, 4, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        z = mu
        if self.training:
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(self.fc(z).unflatten(1, (24, 4, 4))), mu, logvar


@architecture("dcgan_generator", floats(2, 16, 1, 1))
def dcgan_generator() -> nn.Module:
    """Build a generator of transposed convolutions."""
    return nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


class TimeBlock(nn.Module):
    """A diffusion block: a time embedding gives a scale and a shift."""

    def __init__(self, channels: int, embedding: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(embedding, channels * 2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.time(t)[:, :, None, None].chunk(2, dim=1)
        h = self.norm(self.conv1(x)) * (1 + scale) + shift
        return x + self.conv2(F.silu(h))


@architecture("diffusion_unet", together(images(3, 8), floats(2, 16)))
class DiffusionUNet(nn.Module):
    """Blocks modulated by time, with one skip."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.inp = nn.Conv2d(3, 16, 3, padding=1)
        self.block1 = TimeBlock(16, 32)
        self.down = nn.Conv2d(16, 32, 3, 2, 1)
        self.block2 = TimeBlock(32, 32)
        self.up = nn.Conv2d(32, 16, 3, padding=1)
        self.block3 = TimeBlock(32, 32)
        self.out = nn.Sequential(nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 3, 3, padding=1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.time(t)
        skip = self.block1(self.inp(x), emb)
        h = self.block2(self.down(skip), emb)
        h = self.up(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        return self.out(self.block3(torch.cat([h, skip], dim=1), emb))
