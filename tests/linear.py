"""A linear model, small enough to look at every replica of it in every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hdet
from tests import training


def model_and_optimizer(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    return model, getattr(torch.optim, kind)(model.parameters(), lr=2e-3)


def explored(optimizer: torch.optim.Optimizer, **settings: Any) -> hdet.OneCycleLR:
    """Three virtual replicas that come together every five steps."""
    defaults: dict[str, Any] = {
        "max_lr": 0.05,
        "total_steps": 30,
        "spread_ratio": 0.3,
        "cycle_steps": 5,
        "replicas": hdet.VirtualReplicas(3),
    }
    return hdet.OneCycleLR(optimizer, **{**defaults, **settings})


def batch(step: int) -> torch.Tensor:
    return torch.randn(9, 3, generator=torch.Generator().manual_seed(step)).double()


def virtual_step(model: nn.Module, ensemble: hdet.Ensemble, step: int) -> list[torch.Tensor]:
    points = []
    for _, part in ensemble.fan_out(batch(step)):
        points.append(training.flat(model))
        (model(part).pow(2).mean() / ensemble.num_replicas).backward()
    ensemble.optimizer.step()
    ensemble.optimizer.zero_grad()
    return points
