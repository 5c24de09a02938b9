"""A transformer over patches of an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.tasks.base import Batch, matrices_and_vectors
from benchmarks.tasks.images import Images

SIDE = 7
NUM_PATCHES = (28 // SIDE) ** 2
WIDTH = 48


class PatchTransformer(nn.Module):
    """Patches and a token of no patch -> pre-norm blocks -> the class from that token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, SIDE, stride=SIDE)
        self.start = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(0.02 * torch.randn(NUM_PATCHES + 1, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH,
                4,
                2 * WIDTH,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, 10]``."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.start.expand(len(images), -1, -1), patches], dim=1)
        hidden = hidden + self.position
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(self.norm(hidden[:, 0]))
        return logits


class Patches(Images):
    """A small vision transformer with smoothed labels, AdamW."""

    name = "patches"
    total_steps = 1000
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012
    batch_size = 64

    def build(self) -> nn.Module:
        """About 45 000 parameters."""
        return PatchTransformer()

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Weight decay on matrices only."""
        return matrices_and_vectors(model, 0.05)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Cross-entropy to labels of which a tenth is spread over all classes."""
        return nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)
