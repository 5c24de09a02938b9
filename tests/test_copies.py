"""Pickled and deep copies of a scheduler inside a cycle: the replicas stay where they are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from tests import training

Training = tuple[nn.Module, torch.optim.Optimizer, hdet.OneCycleLR]

CLONES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda original: pickle.loads(pickle.dumps(original)),
}


def build(kind: str, **settings: Any) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-2)
    defaults: dict[str, Any] = {"spread_ratio": 0.3, "cycle_steps": 5, "model": model}
    scheduler = hdet.OneCycleLR(
        optimizer,
        0.05,
        total_steps=30,
        replicas=hdet.VirtualReplicas(3),
        **{**defaults, **settings},
    )
    return model, optimizer, scheduler


def train(parts: Training, steps: range) -> list[torch.Tensor]:
    """What each replica's forward pass saw, step after step."""
    model, optimizer, scheduler = parts
    seen = []
    for step in steps:
        x = torch.randn(9, 3, generator=torch.Generator().manual_seed(step)).double()
        for _, part in scheduler.ensemble.fan_out(x):
            seen.append(training.flat(model))
            (model(part).pow(2).mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return seen


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("how", CLONES)
def test_a_copy_inside_a_cycle_has_the_same_replicas(kind: str, how: str) -> None:
    original = build(kind)
    train(original, range(8))
    clone = CLONES[how](original)
    found, expected = (train(parts, range(8, 17)) for parts in (clone, original))
    assert not torch.equal(expected[0], expected[2]), "the replicas are apart at the copy"
    for own, other in zip(found, expected, strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("how", CLONES)
def test_a_write_just_before_the_copy_is_taken_up_by_the_copy_too(how: str) -> None:
    original = build("AdamW")
    train(original, range(8))
    with torch.no_grad():
        original[0][0].bias.fill_(7.0)
        original[0][1].running_mean.fill_(8.0)
    clone = CLONES[how](original)
    for parts in (original, clone):
        for _ in parts[2].ensemble.fan_out(torch.zeros(9, 3)):
            assert parts[0][0].bias.tolist() == [7.0] * 4
            assert parts[0][1].running_mean.tolist() == [8.0] * 4


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol(protocol: int) -> None:
    original = build("AdamW")
    train(original, range(8))
    clone = pickle.loads(pickle.dumps(original, protocol))
    assert torch.equal(train(clone, range(8, 9))[2], train(original, range(8, 9))[2])
    assert vars(clone[2]).keys() == vars(original[2]).keys()
