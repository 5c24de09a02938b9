"""Image classifiers on Fashion-MNIST (Debian's ``dataset-fashion-mnist``)."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.tasks.base import Batch, Task, epochs_order

FOLDER = Path("/usr/share/datasets/fashion-mnist")
BATCH_SIZE = 128
NUM_PIXELS = 28 * 28
MEAN, STD = 0.2860, 0.3530


@functools.cache
def split(prefix: str) -> Batch:
    """Standardised images and labels of the part ``train`` or ``t10k``."""
    if not FOLDER.is_dir():
        raise FileNotFoundError(
            "the image tasks need Fashion-MNIST; apt-get install dataset-fashion-mnist"
        )
    images = gzip.decompress((FOLDER / f"{prefix}-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = gzip.decompress((FOLDER / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())[8:]
    pixels = torch.frombuffer(bytearray(images), dtype=torch.uint8).view(-1, 1, 28, 28)
    targets = torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()
    return (pixels.float() / 255.0 - MEAN) / STD, targets


def convolutions(norm: Callable[[int], nn.Module]) -> list[nn.Module]:
    """Three of them, each with its normalisation: from an image to 64 channels of 4 by 4."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
        conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        layers += [conv, norm(outputs), nn.ReLU()]
    return layers


class Images(Task):
    """Classification of images, in shuffled epochs, without augmentation."""

    batch_size = BATCH_SIZE
    num_images = 60_000
    """The first so many are trained on."""

    def batch(self, step: int, seed: int) -> Batch:
        """Shuffled epochs."""
        order = epochs_order(self.num_images, self.batch_size, step, seed)
        return tuple(column[order] for column in split("train"))

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def held_out(self) -> list[Batch]:
        """The test set."""
        images, labels = split("t10k")
        return list(zip(torch.split(images, 1000), torch.split(labels, 1000), strict=True))


class Fashion(Images):
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


class FashionAdamW(Fashion):
    """The same classifier under AdamW."""

    name = "fashion_adamw"
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012
    weight_decay = 0.01
