"""One parameter on each process, and a scheduler for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hdet


def one_parameter(value: float = 1.0) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    param = nn.Parameter(torch.full((2,), value))
    return param, torch.optim.SGD([param], lr=0.1)


def scheduler_of(optimizer: torch.optim.Optimizer, **overrides: Any) -> hdet.OneCycleLR:
    settings: dict[str, Any] = {
        "max_lr": 0.1,
        "total_steps": 20,
        "cycle_momentum": False,
        "spread_ratio": 0.5,
        "cycle_steps": 4,
    }
    return hdet.OneCycleLR(optimizer, **{**settings, **overrides})
