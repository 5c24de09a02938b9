"""A variational autoencoder of images."""

from __future__ import annotations

import functools

import torch
from torch import nn

from benchmarks.tasks.base import Batch
from benchmarks.tasks.images import MEAN, NUM_PIXELS, STD, Images

NUM_LATENT = 8


class VAEModel(nn.Module):
    """Two perceptrons and noise between them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(NUM_PIXELS, 192), nn.SiLU(), nn.Linear(192, 2 * NUM_LATENT)
        )
        self.decoder = nn.Sequential(
            nn.Linear(NUM_LATENT, 192), nn.SiLU(), nn.Linear(192, NUM_PIXELS)
        )

    def forward(
        self, pixels: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the pixels, and the divergence from the prior, summed over the batch."""
        mean, raw = self.encoder(pixels).chunk(2, dim=1)
        std = nn.functional.softplus(raw) + 1e-3
        logits = self.decoder(mean + noise * std)
        divergence = (0.5 * (mean.square() + std.square() - 1.0) - std.log()).sum()
        return logits, divergence


class VAE(Images):
    """The negative evidence bound of images, with noise in the middle, Adam."""

    name = "vae"
    total_steps = 1200
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012
    batch_size = 100

    def build(self) -> nn.Module:
        """About 310 000 parameters."""
        return VAEModel()

    def batch(self, step: int, seed: int) -> Batch:
        """Images, and the noise that goes with them."""
        images, _ = super().batch(step, seed)
        return images, _noise(len(images), 1_000_003 * (seed + 1) + step)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """In nats an image, whose pixels are chances of ink."""
        pixels = (batch[0] * STD + MEAN).flatten(1)
        logits, divergence = model(pixels, batch[1])
        ink = nn.functional.binary_cross_entropy_with_logits(logits, pixels, reduction="sum")
        bound: torch.Tensor = (ink + divergence) / len(pixels)
        return bound

    @functools.cached_property
    def _held_out(self) -> list[Batch]:
        parts = [images for images, _ in super().held_out()]
        return [(images, _noise(len(images), -1 - i)) for i, images in enumerate(parts)]

    def held_out(self) -> list[Batch]:
        """The test set, with noise that stays."""
        return self._held_out


def _noise(num: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, NUM_LATENT, generator=generator)
