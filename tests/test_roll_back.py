"""States that are loaded inside a run, into another kind of run, or not at all."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from tests import training
from tests.linear import batch, explored, model_and_optimizer, virtual_step


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_roll_back_inside_a_cycle_starts_from_what_was_loaded(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-2)
    scheduler = explored(optimizer, model=model)
    for step in range(5):
        virtual_step(model, scheduler.ensemble, step)
        scheduler.step()
    saved = [copy.deepcopy(own.state_dict()) for own in (model, optimizer, scheduler)]
    for step in range(3):
        virtual_step(model, scheduler.ensemble, step)
        scheduler.step()
    for target, state in zip((model, optimizer, scheduler), saved, strict=True):
        target.load_state_dict(state)
    expected = training.flat(model)
    for _ in scheduler.ensemble.fan_out(batch(0)):
        assert torch.equal(training.flat(model), expected)


def test_a_checkpoint_without_a_controller_goes_on_with_one() -> None:
    def build(**settings: Any) -> hdet.OneCycleLR:
        _, optimizer = model_and_optimizer("Adam")
        return explored(optimizer, **settings)

    plain, steered = build(), build(auto_lr=True, warmup_steps=10)
    for _ in range(5):
        plain.optimizer.step()
        plain.step()
    steered.load_state_dict(plain.state_dict())
    for _ in range(10):
        steered.optimizer.step()
        steered.step([1.0, 1.0, 1.0])
    plain.load_state_dict(steered.state_dict())
    assert plain.ensemble.num_steps == 15


@pytest.mark.parametrize(
    "break_it",
    [
        lambda s: s["ensemble"].pop("plan"),
        lambda s: s["ensemble"].update(step=-1),
        lambda s: s["ensemble"]["hyperparameters"]["lr/0"].update(base="fast"),
        lambda s: s["ensemble"].update(version=0),
    ],
)
def test_a_broken_checkpoint_changes_nothing(break_it: Any) -> None:
    _, optimizer = model_and_optimizer("Adam")
    scheduler = hdet.OneCycleLR(optimizer, 0.05, total_steps=30)
    before = scheduler.state_dict()
    broken = copy.deepcopy(before)
    broken["last_epoch"] = 17
    break_it(broken)
    with pytest.raises(hdet.HDETError):
        scheduler.load_state_dict(broken)
    assert scheduler.state_dict() == before
