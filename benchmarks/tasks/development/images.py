"""Four more ways to train on Fashion-MNIST."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.tasks.base import Batch
from benchmarks.tasks.images import NUM_PIXELS, Images, convolutions


class Autoencoder(Images):
    """Images through sixteen numbers and back, squared error, AdamW."""

    name = "autoencoder"
    total_steps = 1200
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012
    weight_decay = 0.01

    def build(self) -> nn.Module:
        """Three layers in, three layers out."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(NUM_PIXELS, 128),
            nn.ReLU(),
            nn.Linear(128, 64),
            nn.ReLU(),
            nn.Linear(64, 16),
            nn.Linear(16, 64),
            nn.ReLU(),
            nn.Linear(64, 128),
            nn.ReLU(),
            nn.Linear(128, NUM_PIXELS),
        )

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean squared error of a pixel, whose variance is one."""
        return nn.functional.mse_loss(model(batch[0]), batch[0].flatten(1))


def _perceptron(dropout: float = 0.0) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for width in (NUM_PIXELS, 128):
        layers += [nn.Linear(width, 128), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(128, 10))


class Perceptron(Images):
    """A plain perceptron under SGD with momentum, three epochs."""

    name = "mlp_sgd"
    total_steps = 1404
    family = "sgd"
    settings = {"momentum": 0.9}  # noqa: RUF012

    def build(self) -> nn.Module:
        """Two hidden layers, no normalisation."""
        return _perceptron()


class ConvGroupNorm(Images):
    """A small convolutional classifier with GroupNorm under SGD with momentum."""

    name = "conv_groupnorm"
    total_steps = 1000
    family = "sgd"
    settings = {"momentum": 0.9}  # noqa: RUF012
    batch_size = 64

    def build(self) -> nn.Module:
        """Three convolutions and the mean over positions."""
        layers = convolutions(lambda width: nn.GroupNorm(8, width))
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class FewImages(Images):
    """Three thousand images for 26 epochs with dropout and weight decay, AdamW: it overfits."""

    name = "few_images"
    total_steps = 1200
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012
    weight_decay = 1.0
    batch_size = 64
    num_images = 3000

    def build(self) -> nn.Module:
        """The plain perceptron with dropout."""
        return _perceptron(dropout=0.3)
