"""Several schedulers on one optimiser: the one that wrote last steers it, and the rest let go."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hdet
from tests import training


def model_and_optimizer(kind: str = "AdamW") -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    return model, getattr(torch.optim, kind)(model.parameters(), lr=0.1)


def scheduler_of(optimizer: torch.optim.Optimizer, **settings: Any) -> hdet.OneCycleLR:
    defaults: dict[str, Any] = {
        "max_lr": 0.1,
        "total_steps": 20,
        "spread_ratio": 0.3,
        "cycle_steps": 4,
        "cycle_momentum": False,
        "replicas": hdet.VirtualReplicas(3),
    }
    return hdet.OneCycleLR(optimizer, **{**defaults, **settings})


def train_step(model: nn.Module, scheduler: hdet.OneCycleLR, step: int) -> list[torch.Tensor]:
    """One step but for the scheduler's own; returns what each replica's forward pass saw."""
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step)).double()
    seen = []
    for _, part in scheduler.ensemble.fan_out(x):
        seen.append(training.flat(model))
        (model(part).pow(2).mean() / scheduler.ensemble.num_replicas).backward()
    scheduler.optimizer.step()
    scheduler.optimizer.zero_grad()
    return seen


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("stays", ["alive", "deleted"])
def test_a_scheduler_that_is_replaced_changes_nothing(kind: str, stays: str) -> None:
    def run(*, replaced: bool) -> list[torch.Tensor]:
        model, optimizer = model_and_optimizer(kind)
        first = scheduler_of(optimizer, seed=7) if replaced else None
        second = scheduler_of(optimizer)
        if stays == "deleted":
            del first
        seen = []
        for step in range(6):
            seen += train_step(model, second, step)
            second.step()
        return seen

    alone, after_another = run(replaced=False), run(replaced=True)
    assert not torch.equal(alone[3], alone[5]), "the replicas come apart"
    assert all(torch.equal(own, other) for own, other in zip(alone, after_another, strict=True))


def test_replacing_one_inside_its_cycle_ends_its_exploration() -> None:
    model, optimizer = model_and_optimizer()
    first = scheduler_of(optimizer)
    for step in range(2):
        train_step(model, first, step)
        first.step()
    second = scheduler_of(optimizer, seed=1)
    train_step(model, second, 2)
    second.step()
    assert not first.ensemble.replicas._storage.forked
    points = train_step(model, second, 3)
    assert not torch.equal(points[0], points[2])
    points = train_step(model, first, 4)
    assert torch.equal(points[0], points[2]), "the one that was replaced explores no more"


def test_an_optimizers_checkpoint_leaves_the_values_to_the_last_scheduler() -> None:
    _, optimizer = model_and_optimizer()
    first = scheduler_of(optimizer, max_lr=0.5)
    saved = copy.deepcopy(optimizer.state_dict())
    second = scheduler_of(optimizer)
    optimizer.load_state_dict(saved)
    assert first.ensemble.base_values["lr/0"] == pytest.approx(0.5 / 25)
    assert optimizer.param_groups[0]["lr"] == second.ensemble.base_values["lr/0"]


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_two_of_ours_in_one_chain_take_turns(kind: str) -> None:
    model, optimizer = model_and_optimizer(kind)
    children = [scheduler_of(optimizer, seed=seed) for seed in range(2)]
    chain = lr_scheduler.SequentialLR(optimizer, list(children), [6])
    for step in range(12):
        active, other = children if step < 6 else reversed(children)
        assert active.ensemble.base_values["lr/0"] == optimizer.param_groups[0]["lr"]
        points = train_step(model, active, step)
        assert torch.equal(points[0], points[2]) == (step in (0, 4, 6, 10)), step
        assert not other.ensemble.replicas._storage.forked
        chain.step()


def test_a_copy_of_one_that_is_not_in_charge_is_not_either() -> None:
    model, optimizer = model_and_optimizer()
    ours = scheduler_of(optimizer)
    optimizer.param_groups[0]["lr"] = 0.03
    model, optimizer, ours = copy.deepcopy((model, optimizer, ours))
    train_step(model, ours, 0)
    points = train_step(model, ours, 1)
    assert torch.equal(points[0], points[2])


@pytest.mark.parametrize("spread", [0.0, 0.3])
class TestNothingKeepsAnythingAlive:
    """PyTorch's own tests of the same names, with virtual replicas."""

    def test_no_cyclic_references(self, spread: float) -> None:
        gc.collect()
        param = nn.Parameter(torch.empty(10))
        optimizer = torch.optim.SGD([param], lr=0.5)
        scheduler = scheduler_of(
            optimizer, spread_ratio=spread, replicas=hdet.VirtualReplicas(4), cycle_steps=1
        )
        del scheduler
        assert len(gc.get_referrers(optimizer)) == 0
        gc.collect()
        del optimizer
        assert gc.collect() == 0

    @pytest.mark.parametrize("kind", ["SGD", "AdamW"])
    def test_no_cyclic_references_in_step(self, spread: float, kind: str) -> None:
        def run() -> list[weakref.ref[Any]]:
            model, optimizer = model_and_optimizer(kind)
            scheduler = scheduler_of(
                optimizer, spread_ratio=spread, replicas=hdet.VirtualReplicas(3), model=model
            )
            for step in range(6):
                train_step(model, scheduler, step)
                scheduler.step()
            return [weakref.ref(own) for own in (scheduler, optimizer, model.weight)]

        gc.collect()
        gc.disable()
        try:
            assert [reference() for reference in run()] == [None] * 3
        finally:
            gc.enable()
