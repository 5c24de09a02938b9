"""What a state holds: plain types, and tensors of the parameters' size only as reference point."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hdet

SIZE = 5000


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [own for entry in value.values() for own in tensors_in(entry)]
    if isinstance(value, list | tuple):
        return [own for entry in value for own in tensors_in(entry)]
    assert value is None or type(value) in (bool, int, float, str), type(value)
    return []


def trained(scheduler: Any, num_steps: int) -> None:
    for _ in range(num_steps):
        for group in scheduler.optimizer.param_groups:
            for param in group["params"]:
                param.grad = param.detach().clone()
        scheduler.optimizer.step()
        count = getattr(scheduler, "ensemble", scheduler).num_replicas
        scheduler.step(torch.ones(count) if count > 1 else 1.0)


@pytest.mark.parametrize(
    ("kind", "copies"), [("plain", 0), ("spread", 0), ("ensemble", 0), ("AutoLR", 2)]
)
def test_tensors_are_there_only_as_averages_of_the_parameters(kind: str, copies: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(SIZE))], lr=0.1, momentum=0.9)
    replicas = hdet.VirtualReplicas(4)
    explored = {"spread_ratio": 0.1, "replicas": replicas, "cycle_steps": 5, "auto_lr": True}
    scheduler: Any
    if kind == "AutoLR":
        scheduler = hdet.AutoLR(optimizer, 1000)
    elif kind == "ensemble":
        rates = [hdet.LearningRate(0, spread_ratio=0.1)]
        scheduler = hdet.Ensemble(optimizer, hyperparameters=rates, replicas=replicas)
    else:
        scheduler = hdet.OneCycleLR(optimizer, 0.1, 1000, **(explored if kind == "spread" else {}))
    trained(scheduler, 13)
    scheduler.converge()
    state = scheduler.state_dict()
    found = tensors_in(state)
    assert sum(own.numel() for own in found) == copies * SIZE
    assert len(repr([own for own in state.items() if own[0] != "ensemble"])) < 3000
