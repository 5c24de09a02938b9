"""What a task is: data from an ordinary package install, a model, a loss, a held-out loss."""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import nn

Batch = tuple[torch.Tensor, ...]


class Task(abc.ABC):
    """A training problem of fixed length whose batches are a function of (seed, step).

    Every configuration of a comparison sees the same initial weights and the same batches.
    """

    name: str
    total_steps: int
    family: str
    """``"adamw"`` or ``"sgd"``: the optimiser that a grid of rates is searched for."""
    settings: dict[str, Any]
    """What the optimiser takes beside the rate."""
    clip: float | None = None
    """The norm that gradients are clipped to."""
    weight_decay: float = 0.0
    """Of the one group that there is unless a task has its own."""

    @abc.abstractmethod
    def build(self) -> nn.Module:
        """A fresh model, from torch's global generator, which the runner seeds."""

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups, named, without rates."""
        params = list(model.parameters())
        return [{"name": "all", "params": params, "weight_decay": self.weight_decay}]

    @abc.abstractmethod
    def batch(self, step: int, seed: int) -> Batch:
        """Step's training batch; also defined beyond ``total_steps``."""

    @abc.abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean training loss of a batch."""

    @abc.abstractmethod
    def held_out(self) -> list[Batch]:
        """The validation data, the same for every seed, in batches of equal size."""

    @torch.no_grad()
    def validate(self, model: nn.Module) -> float:
        """Mean loss on the held-out data, in evaluation mode."""
        was_training = model.training
        model.eval()
        losses = [float(self.loss(model, batch)) for batch in self.held_out()]
        model.train(was_training)
        return sum(losses) / len(losses)


def epochs_order(num_items: int, batch_size: int, step: int, seed: int) -> torch.Tensor:
    """Indices of a step's batch when each epoch is a fresh shuffle without its ragged end."""
    per_epoch = num_items // batch_size
    epoch, within = divmod(step, per_epoch)
    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    order = torch.randperm(num_items, generator=generator)
    return order[within * batch_size : (within + 1) * batch_size]


def matrices_and_vectors(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups, with weight decay on matrices only."""
    params = list(model.parameters())
    matrices, vectors = ([p for p in params if (p.dim() > 1) is own] for own in (True, False))
    return [
        {"name": "matrices", "params": matrices, "weight_decay": weight_decay},
        {"name": "vectors", "params": vectors, "weight_decay": 0.0},
    ]
