"""Optimisers of two parameter groups, explored, and a loss that prefers higher rates."""

from __future__ import annotations

from typing import Any

import torch

import hdet


def optimizer_of(
    kind: str = "sgd", groups: int = 2, *, tensor_lr: bool = False
) -> torch.optim.Optimizer:
    lr: Any = torch.tensor(0.05) if tensor_lr else 0.05
    members = [{"params": [torch.nn.Parameter(torch.ones(3))]} for _ in range(groups)]
    if kind == "sgd":
        return torch.optim.SGD(members, lr=lr, momentum=0.9)
    if kind == "plain-sgd":
        return torch.optim.SGD(members, lr=lr)
    return torch.optim.AdamW(members, lr=lr, foreach=False)


def group_view(optimizer: torch.optim.Optimizer) -> list[tuple[Any, ...]]:
    return [(float(g["lr"]), g.get("momentum"), g.get("betas")) for g in optimizer.param_groups]


def exploring(n: int, **overrides: Any) -> tuple[torch.optim.Optimizer, hdet.OneCycleLR]:
    optimizer = optimizer_of()
    settings: dict[str, Any] = {
        "max_lr": [0.3, 0.1],
        "total_steps": 60,
        "spread_ratio": 0.2,
        "cycle_steps": 10,
        "replicas": hdet.VirtualReplicas(n),
        "seed": 3,
    }
    return optimizer, hdet.OneCycleLR(optimizer, **{**settings, **overrides})


def planted_losses(step: int, rates: list[list[float]]) -> list[float]:
    """A preference for higher rates, more so in group 0, with a wobble that can overrule it."""
    first, second = rates
    return [
        2.0 - 0.3 * a - 0.1 * b + 2e-4 * ((step * 7 + r * 3) % 5)
        for r, (a, b) in enumerate(zip(first, second, strict=True))
    ]
