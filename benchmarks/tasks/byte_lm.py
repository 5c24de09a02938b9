"""Language models on the bytes of Python's own library sources."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from benchmarks.tasks.base import Batch, Task, matrices_and_vectors
from hdet.cli.byte_model import ByteModel, corpus, draw


@functools.cache
def _corpus() -> tuple[torch.Tensor, torch.Tensor]:
    return corpus(8_000_000)


class Bytes(Task):
    """Windows of bytes: training draws them at random, and no file is both seen and held out."""

    length = 64
    batch_size = 16

    def batch(self, step: int, seed: int) -> Batch:
        """Random windows of the training files."""
        return (draw(_corpus()[0], self.batch_size, self.length, 1_000_003 * seed + step),)

    @functools.cached_property
    def _held_out(self) -> list[Batch]:
        windows = draw(_corpus()[1], 512, self.length, 12345)
        return [(part,) for part in torch.split(windows, 64)]

    def held_out(self) -> list[Batch]:
        """Windows of files that training never sees."""
        return self._held_out


class ByteLM(Bytes):
    """Next-byte prediction with a small pre-norm transformer."""

    name = "byte_lm"
    total_steps = 1000
    family = "adamw"
    settings = {"betas": (0.9, 0.95)}  # noqa: RUF012
    clip: float | None = 1.0

    def build(self) -> nn.Module:
        """About 130 000 parameters."""
        return ByteModel(width=64, num_layers=2, length=self.length, dropout=0.1)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Weight decay on matrices only."""
        return matrices_and_vectors(model, 0.1)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Cross-entropy in nats a byte."""
        loss: torch.Tensor = model(batch[0])
        return loss
