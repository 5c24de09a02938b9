"""Image classifiers with BatchNorm on Fashion-MNIST (Debian's ``dataset-fashion-mnist``)."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.tasks.base import Batch, Task, epochs_order

FOLDER = Path("/usr/share/datasets/fashion-mnist")
BATCH_SIZE = 128


@functools.cache
def _split(prefix: str) -> Batch:
    if not FOLDER.is_dir():
        raise FileNotFoundError(
            "the image tasks need Fashion-MNIST; apt-get install dataset-fashion-mnist"
        )
    images = gzip.decompress((FOLDER / f"{prefix}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((FOLDER / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())[8:]
    pixels = torch.frombuffer(bytearray(images), dtype=torch.uint8).view(-1, 1, 28, 28)
    targets = torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()
    return (pixels.float() / 255.0 - 0.2860) / 0.3530, targets


class Fashion(Task):
    """A small convolutional classifier with BatchNorm under SGD with momentum, three epochs."""

    name = "fashion_sgd"
    total_steps = 1404
    family = "sgd"
    settings = {"momentum": 0.9}  # noqa: RUF012
    weight_decay = 5e-4

    def build(self) -> nn.Module:
        """About 60 000 parameters."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 49, 32, bias=False),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """One."""
        params = list(model.parameters())
        return [{"name": "all", "params": params, "weight_decay": self.weight_decay}]

    def batch(self, step: int, seed: int) -> Batch:
        """Shuffled epochs."""
        order = epochs_order(60_000, BATCH_SIZE, step, seed)
        return tuple(column[order] for column in _split("train"))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def held_out(self) -> list[Batch]:
        """The test set."""
        images, labels = _split("t10k")
        return list(zip(torch.split(images, 1000), torch.split(labels, 1000), strict=True))


class FashionAdamW(Fashion):
    """The same classifier under AdamW."""

    name = "fashion_adamw"
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012
    weight_decay = 0.01
