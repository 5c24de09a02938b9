"""A classifier of a table: how well a diamond is cut, from all that else is known about it."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.tasks.base import Batch
from benchmarks.tasks.diamonds import GRADES, NUMBERS, Diamonds

FIRST, NUM_CUTS = len(NUMBERS), len(GRADES["cut"])
NUM_INPUTS = len(NUMBERS) + sum(map(len, GRADES.values())) - NUM_CUTS + 1
WIDTH = 64


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = hidden + self.branch(hidden)
        return out


class Cuts(Diamonds):
    """Five classes from a table, a residual perceptron with BatchNorm, SGD without momentum."""

    name = "cuts"
    total_steps = 2000
    family = "sgd"
    settings = {"momentum": 0.0}  # noqa: RUF012
    weight_decay = 1e-4

    def build(self) -> nn.Module:
        """Three blocks."""
        blocks = [_Residual() for _ in range(3)]
        norm = nn.BatchNorm1d(WIDTH)
        return nn.Sequential(
            nn.Linear(NUM_INPUTS, WIDTH), *blocks, norm, nn.ReLU(), nn.Linear(WIDTH, NUM_CUTS)
        )

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Cross-entropy; the cut is the largest of its columns, which are standardised."""
        table, prices = batch
        cuts = table[:, FIRST : FIRST + NUM_CUTS].argmax(1)
        rest = [table[:, :FIRST], table[:, FIRST + NUM_CUTS :], prices[:, None]]
        return nn.functional.cross_entropy(model(torch.cat(rest, dim=1)), cuts)
