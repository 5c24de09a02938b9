"""A recurrent language model on bytes."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.tasks.base import Batch
from benchmarks.tasks.byte_lm import Bytes


class Recurrent(nn.Module):
    """Embedding -> recurrent layer -> a distribution of the next byte at every position."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layer = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 256)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, length, 256]``."""
        hidden, _ = self.layer(self.embedding(inputs))
        logits: torch.Tensor = self.head(hidden)
        return logits


class LSTM(Bytes):
    """Next-byte prediction with one recurrent layer, Adam, clipped gradients."""

    name = "lstm"
    total_steps = 1500
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012
    clip = 1.0
    length = 48

    def build(self) -> nn.Module:
        """About 140 000 parameters."""
        return Recurrent(width=32, hidden=128)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Cross-entropy in nats a byte."""
        logits = model(batch[0][:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())
