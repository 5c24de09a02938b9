"""The guard on gloo processes: all go back together, wherever the fault was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hdet
from tests.pool import Pool

pytestmark = pytest.mark.distributed

CYCLE, END = 5, 40


def train(rank: int, where: str, bad_rank: int, bad_step: int, spread: float) -> dict[str, Any]:
    torch.manual_seed(0)
    theta = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([theta], lr=0.02)
    scheduler = hdet.OneCycleLR(
        optimizer,
        0.02,
        END,
        spread_ratio=spread,
        cycle_steps=CYCLE,
        guard=hdet.Guard(min_steps=1),
    )
    points = []
    for step in range(END):
        data = torch.randn(3, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = (theta - 0.1 * data).square().sum()
        optimizer.zero_grad()
        loss.backward()
        assert theta.grad is not None
        here = rank == bad_rank and step == bad_step
        if here and where == "gradient before the mean":
            theta.grad[1] = math.nan
        dist.all_reduce(theta.grad)
        theta.grad /= dist.get_world_size()
        if here and where == "gradient after the mean":
            theta.grad[1] = math.inf
        optimizer.step()
        told = loss.detach() * (math.nan if here and where == "loss" else 1.0)
        scheduler.step(told)
        points.append(theta.detach().clone())
    scheduler.converge()
    return {
        "points": torch.stack(points),
        "end": theta.detach().clone(),
        "roll_backs": scheduler.ensemble.num_roll_backs,
    }


@pytest.mark.parametrize("bad_rank", [0, 1])
@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_a_bad_gradient_that_reaches_everybody_is_undone(
    pool: Pool, spread: float, bad_rank: int
) -> None:
    found = pool.run(train, 2, "gradient before the mean", bad_rank, 12, spread)
    for own in found:
        assert own["roll_backs"] == 1
        assert own["end"].isfinite().all()
        assert torch.equal(own["end"], found[0]["end"])
        # The cycle of steps 10 to 14 is the bad one: its end is the end of the one before.
        assert torch.equal(own["points"][14], own["points"][9])
    late = pool.run(train, 2, "gradient after the mean", bad_rank, 12, spread)
    assert [own["roll_backs"] for own in late] == [1, 1], "by way of the next gradients"
    clean = pool.run(train, 2, "nowhere", bad_rank, 12, spread)
    assert [own["roll_backs"] for own in clean] == [0, 0], "negative control"


@pytest.mark.parametrize("where", ["gradient after the mean", "loss"])
@pytest.mark.parametrize("bad_rank", [0, 1])
def test_one_bad_replica_is_restored_and_nobody_goes_back(
    pool: Pool, where: str, bad_rank: int
) -> None:
    # At the last step of a cycle: one step later its gradients would have reached everybody.
    found = pool.run(train, 2, where, bad_rank, 14, 0.2)
    for own in found:
        assert own["roll_backs"] == 0
        assert own["end"].isfinite().all()
        assert torch.equal(own["end"], found[0]["end"])
        assert torch.equal(own["points"][14], found[0]["points"][14])
