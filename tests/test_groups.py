"""Parameter groups that come or go after the scheduler was built."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hdet
from hdet.errors import UsageError

KINDS: dict[str, Callable[..., Any]] = {
    "AutoLR": lambda optimizer: hdet.AutoLR(optimizer, 20),
    "OneCycleLR": lambda optimizer: hdet.OneCycleLR(optimizer, 0.1, total_steps=20),
    "OneCycleLR with a spread": lambda optimizer: hdet.OneCycleLR(
        optimizer,
        0.1,
        total_steps=20,
        spread_ratio=0.2,
        cycle_steps=4,
        replicas=hdet.VirtualReplicas(2),
    ),
}


def built(kind: str) -> tuple[torch.optim.Optimizer, Any]:
    """A scheduler that has taken three steps."""
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(3))], lr=0.1)
    scheduler = KINDS[kind](optimizer)
    for _ in range(3):
        trained(optimizer, scheduler)
    return optimizer, scheduler


def trained(optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = param.detach().clone()
    optimizer.step()
    scheduler.step()


def standing(optimizer: torch.optim.Optimizer, scheduler: Any) -> list[Any]:
    """Everything that a step may move."""
    settings = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    ensemble = scheduler.ensemble
    ends = [ensemble.num_steps, ensemble._cycle, ensemble._cycle_end]
    return [settings, scheduler.last_epoch, scheduler._step_count, ends, ensemble.base_values]


MESSAGE = (
    r"^the optimizer must keep the 1 parameter groups .*, got 2 at step 3; "
    r"call add_param_group\(\) before"
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["step", "converge", "_update_lr"])
def test_a_group_that_is_added_later_is_named_and_nothing_moves(kind: str, call: str) -> None:
    optimizer, scheduler = built(kind)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    before = standing(optimizer, scheduler)
    with pytest.raises(UsageError, match=MESSAGE):
        getattr(scheduler, call)()
    assert standing(optimizer, scheduler) == before


def test_a_group_that_is_gone_is_named_too() -> None:
    optimizer, scheduler = built("AutoLR")
    del optimizer.param_groups[0]
    with pytest.raises(UsageError, match=r"the 1 parameter groups .*, got 0 at step 3"):
        scheduler.step()


@pytest.mark.parametrize("kind", KINDS)
def test_both_remedies_work(kind: str) -> None:
    optimizer, _ = built(kind)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    scheduler = KINDS[kind](optimizer)
    for _ in range(6):
        trained(optimizer, scheduler)
    scheduler.converge()
    assert len(scheduler.get_last_lr()) == 2


def test_a_group_that_joins_before_the_phase_of_a_sequence() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    warmup = lr_scheduler.LambdaLR(optimizer, lambda step: 0.1)
    ours = hdet.AutoLR(optimizer, 20)
    chain = lr_scheduler.SequentialLR(optimizer, [warmup, ours], [1])
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    optimizer.step()
    with pytest.raises(UsageError, match=r"the 1 parameter groups .*, got 2"):
        chain.step()
