"""What training scripts do with their optimisers and parameters, with virtual replicas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hdet
from tests import training
from tests.linear import batch, explored, model_and_optimizer, virtual_step


@pytest.mark.parametrize("fused", [True, False])
def test_a_grad_scaler_unscales_once(fused: bool) -> None:
    def train(*, scaled: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        scheduler = explored(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for step in range(12):
            for _, part in scheduler.ensemble.fan_out(batch(step).float()):
                scaler.scale(model(part).pow(2).mean() / 3).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
        return training.flat(model)

    assert torch.allclose(train(scaled=True), train(scaled=False), rtol=1e-5)


class Later(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Parameter(torch.ones(2))
        self.late = nn.Parameter(torch.ones(2), requires_grad=False)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("how", ["unfrozen", "added"])
def test_a_parameter_that_joins_inside_a_cycle_is_stepped_once(kind: str, how: str) -> None:
    def train(*, replicas: hdet.VirtualReplicas | None) -> list[float]:
        model = Later()
        members = list(model.parameters()) if how == "unfrozen" else [model.early]
        optimizer = getattr(torch.optim, kind)(members, lr=0.1)
        ensemble = hdet.Ensemble(
            optimizer,
            hyperparameters=[hdet.LearningRate(0, spread_ratio=0.3 if replicas else 0.0)],
            cycle_steps=5,
            replicas=replicas,
        )
        seen = []
        for step in range(5):
            if step == 2:
                model.late.requires_grad_()
                if how == "added":
                    optimizer.add_param_group({"params": [model.late], "lr": 0.1})
            loss = (model.early + model.late).pow(2).sum()
            for _ in ensemble.fan_out(torch.ones(3)):
                (loss / ensemble.num_replicas).backward(retain_graph=True)
                break
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                seen = model.late.tolist()
            ensemble.step()
        return seen

    expected = train(replicas=None)
    assert train(replicas=hdet.VirtualReplicas(3)) == pytest.approx(expected, rel=1e-2)


class Nested(torch.optim.AdamW):
    """A subclass whose step calls its parent's, as many libraries have."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_subclass_that_calls_its_parents_step() -> None:
    ends = []
    for kind in (torch.optim.AdamW, Nested):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        optimizer = kind(model.parameters(), lr=1e-2)
        scheduler = explored(optimizer)
        for step in range(8):
            for _, part in scheduler.ensemble.fan_out(batch(step)):
                (model(part).pow(2).mean() / 3).backward()
            optimizer.step(None)
            optimizer.zero_grad()
            scheduler.step()
        ends.append(training.flat(model))
    assert torch.equal(ends[0], ends[1])


def test_weight_decay_switched_on_later_is_exact_from_the_next_cycle() -> None:
    from hdet.replicas.storage import CopiesStorage, LineStorage

    model, optimizer = model_and_optimizer("Adam")
    scheduler = explored(optimizer, max_lr=0.5, cycle_steps=3)
    for step in range(4):
        virtual_step(model, scheduler.ensemble, step)
        scheduler.step()
        optimizer.param_groups[0]["weight_decay"] = 0.1
        storage = scheduler.ensemble.replicas._storage
        assert isinstance(storage, LineStorage if step < 3 else CopiesStorage)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_model_that_changes_type_between_cycles(kind: str) -> None:
    model, optimizer = model_and_optimizer(kind)
    model.float()
    scheduler = explored(optimizer, max_lr=0.5, cycle_steps=1)
    for _ in range(3):
        model.double()
        optimizer.state.clear()
        for _, part in scheduler.ensemble.fan_out(batch(0)):
            (model(part).pow(2).mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        model.float()
