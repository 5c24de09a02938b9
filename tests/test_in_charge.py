"""Whoever else writes rates, parameters or buffers is respected: schedulers, users, checkpoints."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hdet
from tests import training
from tests.linear import batch, explored, model_and_optimizer, virtual_step
from tests.pool import Pool


def chain_of(
    optimizer: torch.optim.Optimizer, **settings: Any
) -> tuple[lr_scheduler.SequentialLR, hdet.OneCycleLR]:
    """Six steps of linear warmup, then ours."""
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=6)
    ours = hdet.OneCycleLR(
        optimizer,
        0.05,
        total_steps=30,
        spread_ratio=0.3,
        cycle_steps=5,
        cycle_momentum=False,
        **settings,
    )
    return lr_scheduler.SequentialLR(optimizer, [warmup, ours], [6]), ours


def chain_on_a_process(rank: int, kind: str) -> list[tuple[float, torch.Tensor]]:
    model, optimizer = model_and_optimizer(kind)
    wrapped = nn.parallel.DistributedDataParallel(model)
    chain, _ = chain_of(optimizer)
    seen = []
    for step in range(14):
        seen.append((optimizer.param_groups[0]["lr"], training.flat(model)))
        wrapped(batch(step)[3 * rank : 3 * rank + 3]).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        chain.step()
    return seen


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_chain_of_schedulers_is_the_same_on_virtual_replicas(pool: Pool, kind: str) -> None:
    ranks = pool.run(chain_on_a_process, 3, kind)
    model, optimizer = model_and_optimizer(kind)
    chain, ours = chain_of(optimizer, replicas=hdet.VirtualReplicas(3))
    for step in range(14):
        rate = optimizer.param_groups[0]["lr"]
        points = virtual_step(model, ours.ensemble, step)
        for rank, point in zip(ranks, points, strict=True):
            assert torch.allclose(point, rank[step][1], rtol=1e-11), step
        if step < 6:
            assert rate == ranks[0][step][0] == pytest.approx(2e-3 * (0.1 + 0.15 * step))
            assert torch.equal(points[0], points[2]), "nobody explores during the warmup"
        elif step not in (6, 11):  # the first step, and the first one after a converge
            assert not torch.equal(points[0], points[2])
        chain.step()


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("stop", [3, 9])
@pytest.mark.parametrize("scheduler_first", [True, False])
def test_a_chain_resumes_in_any_phase(kind: str, stop: int, scheduler_first: bool) -> None:
    def build() -> tuple[Any, ...]:
        model, optimizer = model_and_optimizer(kind)
        return model, optimizer, *chain_of(optimizer, replicas=hdet.VirtualReplicas(3))

    model, optimizer, chain, ours = build()
    for step in range(stop):
        virtual_step(model, ours.ensemble, step)
        chain.step()
    ours.converge()
    saved = [copy.deepcopy(own.state_dict()) for own in (model, optimizer, chain)]
    other = build()
    other[0].load_state_dict(saved[0])
    loads = [(other[2], saved[2]), (other[1], saved[1])]
    for target, state in loads if scheduler_first else loads[::-1]:
        target.load_state_dict(state)
    for step in range(stop, 12):
        assert other[1].param_groups[0]["lr"] == optimizer.param_groups[0]["lr"], step
        for own_model, own_chain, own in ((model, chain, ours), (other[0], other[2], other[3])):
            virtual_step(own_model, own.ensemble, step)
            own_chain.step()
    assert torch.allclose(training.flat(model), training.flat(other[0]), rtol=1e-12)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_rate_set_by_hand_holds_and_stops_the_exploration(kind: str) -> None:
    model, optimizer = model_and_optimizer(kind)
    scheduler = explored(optimizer, cycle_steps=10, cycle_momentum=False)
    for step in range(3):
        virtual_step(model, scheduler.ensemble, step)
        scheduler.step()
    optimizer.param_groups[0]["lr"] = 0.0
    points = virtual_step(model, scheduler.ensemble, 3)
    assert optimizer.param_groups[0]["lr"] == 0.0
    assert torch.equal(points[0], points[2])
    before = training.flat(model)
    virtual_step(model, scheduler.ensemble, 4)
    assert torch.equal(before, training.flat(model))


class TestBuffers:
    def build(self, model: nn.Module) -> hdet.Ensemble:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return hdet.Ensemble(
            optimizer,
            hyperparameters=[hdet.LearningRate(0, spread_ratio=0.3)],
            cycle_steps=3,
            replicas=hdet.VirtualReplicas(2),
            model=model,
        )

    def test_written_to_between_steps(self) -> None:
        model = nn.BatchNorm1d(2)
        ensemble = self.build(model)
        for value in (0.25, 0.5):
            for _ in ensemble.fan_out(torch.ones(4, 2)):
                pass
            model.running_mean.fill_(value)
            for _ in ensemble.fan_out(torch.ones(4, 2)):
                assert model.running_mean.tolist() == [value] * 2
            assert model.running_mean.tolist() == [value] * 2

    def test_registered_or_replaced_between_steps(self) -> None:
        model = nn.Linear(2, 1)
        ensemble = self.build(model)
        for value in (torch.ones(1), torch.zeros(3)):
            model.register_buffer("late", value)
            for _ in ensemble.fan_out(torch.ones(4, 2)):
                assert torch.equal(model.late, value)
        ensemble.step()
        ensemble.converge()

    def test_expanded_ones_are_constants(self) -> None:
        model = nn.Linear(2, 1)
        model.register_buffer("ones", torch.ones(1).expand(3))
        ensemble = self.build(model)
        for _ in range(3):
            for _, part in ensemble.fan_out(torch.ones(4, 2)):
                model(part).sum().backward()
            ensemble.optimizer.step()
            ensemble.step()
        assert model.ones.tolist() == [1.0] * 3


def test_weights_clamped_between_steps_stay_clamped() -> None:
    model, optimizer = model_and_optimizer("AdamW")
    scheduler = explored(optimizer, max_lr=0.5)
    for step in range(7):
        points = virtual_step(model, scheduler.ensemble, step)
        assert step == 0 or max(float(p.abs().max()) for p in points) <= 0.05 + 1e-12
        with torch.no_grad():
            for param in model.parameters():
                param.clamp_(-0.05, 0.05)
        scheduler.step()
