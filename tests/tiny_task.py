"""A task of a hundred numbers, for tests of what is built around tasks."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.tasks import Batch, Task
from torch import nn


class Tiny(Task):
    """A noisy line."""

    name = "tiny"
    total_steps = 40
    family = "sgd"
    settings = {"momentum": 0.9}  # noqa: RUF012

    def build(self) -> nn.Module:
        return nn.Linear(3, 1)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return [{"name": "all", "params": list(model.parameters())}]

    def batch(self, step: int, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(1000 * seed + step)
        inputs = torch.randn(8, 3, generator=generator)
        return inputs, inputs.sum(1, keepdim=True) + torch.randn(8, 1, generator=generator)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def held_out(self) -> list[Batch]:
        return [self.batch(-1 - i, 999) for i in range(4)]


class TwoGroups(Tiny):
    """The same with weight and bias apart."""

    name = "two_groups"
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": [param]} for param in model.parameters()]
