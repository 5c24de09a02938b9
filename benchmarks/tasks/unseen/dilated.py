"""A language model on bytes that is convolutional."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.tasks.base import Batch
from benchmarks.tasks.byte_lm import Bytes

WIDTH = 48
DILATIONS = (1, 2, 4, 8)


class _Layer(nn.Module):
    """A gated convolution over the past, added to what came in."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.past = dilation
        self.convolution = nn.Conv1d(WIDTH, 2 * WIDTH, 2, dilation=dilation)
        self.out = nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        mixed = self.convolution(nn.functional.pad(hidden, (self.past, 0)))
        signal, gate = mixed.chunk(2, dim=1)
        out: torch.Tensor = hidden + self.out(signal.tanh() * gate.sigmoid())
        return out


class DilatedModel(nn.Module):
    """Embedding -> layers of growing reach -> a distribution of the next byte everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.layers = nn.Sequential(*(_Layer(dilation) for dilation in DILATIONS))
        self.head = nn.Conv1d(WIDTH, 256, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, 256, length]``."""
        logits: torch.Tensor = self.head(self.layers(self.embedding(inputs).transpose(1, 2)))
        return logits


class Dilated(Bytes):
    """Next-byte prediction with dilated convolutions, SGD with momentum, clipped gradients."""

    name = "dilated"
    total_steps = 1500
    family = "sgd"
    settings = {"momentum": 0.9}  # noqa: RUF012
    clip = 1.0
    length = 96
    batch_size = 8

    def build(self) -> nn.Module:
        """About 70 000 parameters, without normalisation."""
        return DilatedModel()

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Cross-entropy in nats a byte."""
        return nn.functional.cross_entropy(model(batch[0][:, :-1]), batch[0][:, 1:])
