"""Mixed precision with a GradScaler: a step that it skips is no step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import hdet


class Scaled:
    """Trains a line; the gradients of the steps in ``overflowing`` are infinite."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        replicas = hdet.VirtualReplicas(2)
        if kind == "one_cycle":
            self.scheduler = hdet.OneCycleLR(
                self.optimizer, 0.1, 40, cycle_steps=5, spread_ratio=0.2, replicas=replicas
            )
        else:
            self.scheduler = hdet.AutoLR(self.optimizer, 40)

    def step(self, index: int, *, overflows: bool = False) -> None:
        batch = torch.randn(4, 3, generator=torch.Generator().manual_seed(index))
        losses = []
        for _, part in self.scheduler.ensemble.fan_out(batch):
            loss = self.model(part).square().mean()
            losses.append(loss.detach())
            self.scaler.scale(loss).backward()
        if overflows:
            self.model.weight.grad[0, 0] = torch.inf
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step(torch.stack(losses))


@pytest.mark.filterwarnings("ignore::hdet.HDETWarning")
@pytest.mark.parametrize("kind", ["one_cycle", "auto"])
def test_a_skipped_step_leaves_no_trace(kind: str) -> None:
    plain, skipping = Scaled(kind), Scaled(kind)
    for index in range(30):
        plain.step(index)
        if index in (7, 8, 21):
            before = copy.deepcopy(skipping.scheduler.state_dict())
            skipping.step(99, overflows=True)
            assert str(skipping.scheduler.state_dict()) == str(before)
        skipping.step(index)
    pairs = zip(skipping.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(own, other) for own, other in pairs)


def test_every_step_counts_where_none_is_skipped() -> None:
    """Negative control: the same calls without an overflow."""
    scaled = Scaled("one_cycle")
    for index in range(10):
        before = scaled.scheduler.ensemble.num_steps
        scaled.step(index)
        assert scaled.scheduler.ensemble.num_steps == before + 1


@pytest.mark.filterwarnings("ignore:Detected call")
def test_a_schedule_can_be_looked_at_without_an_optimiser() -> None:
    param = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=0.1)
    scheduler = hdet.OneCycleLR(optimizer, 0.1, 40, guard=hdet.Guard())
    for _ in range(10):
        scheduler.step()
    assert scheduler.ensemble.num_steps == 10
