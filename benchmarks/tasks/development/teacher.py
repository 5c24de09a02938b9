"""Noisy regression: a network learns from the answers of another one."""

from __future__ import annotations

import functools

import torch
from torch import nn

from benchmarks.tasks.base import Batch, Task

NUM_INPUTS = 32
NOISE = 0.5
"""Standard deviation that no student can explain; that of the teacher's answer is one."""


@functools.cache
def _teacher() -> tuple[torch.Tensor, torch.Tensor]:
    """Directions and their signs."""
    generator = torch.Generator().manual_seed(7)
    directions = torch.linalg.qr(torch.randn(NUM_INPUTS, 8, generator=generator))[0]
    return 2.0 * directions, torch.tensor([1.0, -1.0]).repeat(4)


def _answers(inputs: torch.Tensor) -> torch.Tensor:
    directions, signs = _teacher()
    return (inputs @ directions).tanh() @ signs / 2.0


def _draw(num: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num, NUM_INPUTS, generator=generator)
    return inputs, _answers(inputs) + NOISE * torch.randn(num, generator=generator)


class Teacher(Task):
    """A stream of noisy answers of a random network; the loss stands still at first, AdamW."""

    name = "teacher"
    total_steps = 2000
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012
    weight_decay = 0.01

    def build(self) -> nn.Module:
        """Two hidden layers that start small, which makes the plateau."""
        model = nn.Sequential(
            nn.Linear(NUM_INPUTS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        )
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.03)
                nn.init.zeros_(layer.bias)
        return model

    def batch(self, step: int, seed: int) -> Batch:
        """Fresh inputs."""
        return _draw(64, 1_000_003 * (seed + 1) + step)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean squared error."""
        return nn.functional.mse_loss(model(batch[0]).squeeze(1), batch[1])

    @functools.cached_property
    def _held_out(self) -> list[Batch]:
        return [_draw(2000, -1 - i) for i in range(10)]

    def held_out(self) -> list[Batch]:
        """Twenty thousand more."""
        return self._held_out
