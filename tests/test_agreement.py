"""What ranks must agree on is named at the first step, or at the converge that it would break."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from tests.one_parameter import one_parameter, scheduler_of
from tests.pool import Pool

pytestmark = pytest.mark.distributed


def disagree(rank: int, odd: dict[str, Any]) -> str:
    _, optimizer = one_parameter()
    scheduler = scheduler_of(optimizer, **(odd if rank == 1 else {}))
    optimizer.step()
    try:
        scheduler.step(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"cycle_steps": 5}, r"cycle_steps, got 4 on replica 0 and 5 on replica 1"),
        ({"spread_ratio": 0.25}, r"hyperparameters\[0\], got"),
        ({"spread_ratio": 0.0}, r"switched on, got True on replica 0 and False on replica 1"),
        ({"seed": 7}, r"seed, got 0 on replica 0 and 7 on replica 1"),
        ({"total_steps": 30}, r"total_steps, got 20 on replica 0 and 30"),
        ({"max_lr": 0.2}, r"base values\[0\]"),
        ({"auto_lr": True}, r"controller, got 'FixedController\(\)'"),
        ({"pct_start": 0.5}, r"schedule\[\d+\], got 'schedule_phases\[0\]\.end_step=5\.0' on"),
        ({"anneal_strategy": "linear"}, r"schedule\[\d+\], got .anneal_func_type='cos'|base val"),
        ({"three_phase": True}, r"schedule\[\d+\], got .schedule_phases\["),
        ({"final_div_factor": 10.0}, r"schedule\[\d+\], got 'group\[0\]\.min_lr="),
        ({"cycle_momentum": True}, r"schedule\[\d+\], got 'cycle_momentum=False'"),
        (
            {"cycle_momentum": True, "base_momentum": 0.8, "max_momentum": 0.9},
            r"schedule\[\d+\], got",
        ),
    ],
)
def test_different_settings_are_named_at_the_first_step(
    pool: Pool, odd: dict[str, Any], message: str
) -> None:
    results = pool.run(disagree, 3, odd)
    for found in results:
        assert re.search(message, found), found
        assert "on replica 1" in found
        assert "\n" not in found


def different_plans(rank: int, odd: Any) -> str:
    _, optimizer = one_parameter()
    ensemble = hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)],
        schedule=odd(rank, optimizer),
    )
    try:
        ensemble.step(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return str(error)
    return "no error"


def torch_plan(rank: int, optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3 + rank)


def closed_plan(rank: int, optimizer: torch.optim.Optimizer) -> Any:
    assert optimizer is not None
    return functools.partial(hdet.functional.cosine, total_steps=20 + rank)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (torch_plan, "'step_size=3' on replica 0 and 'step_size=4' on replica 1"),
        (closed_plan, "'bound.total_steps=20' on replica 0 and 'bound.total_steps=21'"),
    ],
)
def test_different_plans_are_named(pool: Pool, odd: Any, message: str) -> None:
    for found in pool.run(different_plans, 2, odd):
        assert message in found


def different_decay(rank: int, when: str) -> str:
    """Weight decay decides whether the optimiser's state is averaged: a message more on a rank."""
    _, optimizer = one_parameter()
    decay = 0.1 if rank == 1 else 0.0
    if when == "built":
        optimizer.param_groups[0]["weight_decay"] = decay
    scheduler = scheduler_of(optimizer, cycle_steps=1)
    try:
        for step in range(2):
            if step == 1:
                optimizer.param_groups[0]["weight_decay"] = decay
            optimizer.step()
            scheduler.ensemble.advance(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return f"step {step}: {error}"
    return "no error"


@pytest.mark.parametrize(("when", "step"), [("built", 0), ("later", 1)])
def test_a_different_weight_decay_is_named(pool: Pool, when: str, step: int) -> None:
    for found in pool.run(different_decay, 2, when):
        assert re.search(
            rf"step {step}: .*optimizer settings\[\d+\], got 'group 0: weight_decay=0\.0' on "
            r"replica 0 and 'group 0: weight_decay=0\.1' on replica 1",
            found,
        ), found


class Finding(torch.optim.SGD):
    """Keeps in its groups what it found on the way, which differs between replicas."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["found"] = group.get("found", 0.0) + group["lr"]
        return super().step(closure)


def finding(rank: int) -> float:
    param = nn.Parameter(torch.ones(2))
    optimizer = Finding([param], lr=0.1)
    scheduler = scheduler_of(optimizer, cycle_steps=2)
    for _ in range(2):
        optimizer.step()
        scheduler.step(1.0)
    assert rank >= 0
    return float(optimizer.param_groups[0]["found"])


def test_what_an_optimizer_finds_on_the_way_may_differ(pool: Pool) -> None:
    assert len(set(pool.run(finding, 2))) == 2


def different_models(rank: int) -> str:
    params = [nn.Parameter(torch.ones(2 + (rank == 2)))]
    scheduler = scheduler_of(torch.optim.SGD(params, lr=0.1))
    try:
        scheduler.ensemble.advance(1.0)
    except hdet.HDETError as error:
        return str(error)
    return "no error"


def test_different_parameters_are_named(pool: Pool) -> None:
    for found in pool.run(different_models, 3):
        assert "parameters[0]" in found
        assert "(2,) torch.float32" in found
        assert "on replica 2" in found


def different_numbers_of_steps(rank: int) -> str:
    _, optimizer = one_parameter()
    scheduler = scheduler_of(optimizer)
    optimizer.step()
    scheduler.step(1.0)
    if rank == 1:
        scheduler.ensemble.seek(5, [0.1])  # as if it had resumed from another checkpoint
    try:
        for _ in range(4):
            optimizer.step()
            scheduler.ensemble.advance(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return str(error)
    return "no error"


def test_replicas_at_different_steps_are_named(pool: Pool) -> None:
    for found in pool.run(different_numbers_of_steps, 2):
        assert "number of steps taken, got 4 on replica 0 and 8 on replica 1" in found


def different_layouts(rank: int) -> str:
    """The same shapes, so the settings agree; another memory layout would scramble the mean."""
    weight = torch.ones(2, 3) if rank == 0 else torch.ones(3, 2).t()
    scheduler = scheduler_of(torch.optim.SGD([nn.Parameter(weight)], lr=0.1), cycle_steps=1)
    try:
        scheduler.ensemble.advance(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return str(error)
    return "no error"


def test_different_memory_layouts_are_named(pool: Pool) -> None:
    for found in pool.run(different_layouts, 2):
        assert "tensors to average[0]" in found
        assert "strides" in found
