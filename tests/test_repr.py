"""What a scheduler says of itself when it is printed."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import pytest
import torch

import hdet
from tests.auto import Run, model_of, optimizer_of


def phase(run: Run) -> str:
    return repr(run.scheduler).rsplit("phase=", 1)[1].strip(")'")


def test_it_says_where_it_stands() -> None:
    run = Run(120)
    assert repr(run.scheduler) == (
        "AutoLR(total_steps=120, step=0, rates=[1e-06, 1e-07], phase='climb')"
    )
    run.train(range(50))
    shown = ", ".join(f"{rate:.4g}" for rate in run.scheduler.get_last_lr())
    assert str(run.scheduler) == (
        f"AutoLR(total_steps=120, step=50, rates=[{shown}], phase='{phase(run)}')"
    )


def test_the_phases_follow_each_other() -> None:
    run = Run(None)
    seen = [phase(run)]
    for step in range(130):
        run.train(range(step, step + 1))
        if step == 110:
            run.scheduler.anneal(20)
        if phase(run) != seen[-1]:
            seen.append(phase(run))
    assert seen == ["climb", "balance", "anneal"]
    assert repr(run.scheduler).startswith("AutoLR(total_steps=None, step=130, rates=[")
    climbing = run.scheduler.ensemble.controller_states
    assert climbing["lr/0"]["climbing"] == 0.0
    climbing["lr/0"]["climbing"] = 1.0
    assert run.scheduler.ensemble.controller_states["lr/0"]["climbing"] == 0.0, "a copy"


def test_a_wrapped_controller_is_looked_into() -> None:
    run = Run(controller=hdet.Bounded(hdet.LongHorizonController(), 1e-5, 1.0))
    assert phase(run) == "climb"


def test_one_cycle_says_so_too() -> None:
    optimizer = optimizer_of(model_of())
    scheduler = hdet.OneCycleLR(optimizer, [0.25, 0.5], total_steps=10)
    assert repr(scheduler) == "OneCycleLR(total_steps=10, step=0, rates=[0.01, 0.02])"


@pytest.mark.parametrize("kind", [hdet.AutoLR, hdet.OneCycleLR])
def test_it_never_raises(kind: Any) -> None:
    """In a debugger it is asked of objects that are half built."""
    assert repr(kind.__new__(kind)) == f"{kind.__name__}(total_steps=None, step=None, rates=[])"
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=torch.tensor(0.1))
    scheduler = kind(optimizer, **({"max_lr": 0.1} if kind is hdet.OneCycleLR else {}), **STEPS)
    for rate in (torch.tensor(0.5), torch.ones(1), torch.tensor(0.1, device="meta"), math.nan):
        scheduler._last_lr = [rate]
        assert "rates=[" in repr(scheduler)
    scheduler._last_lr = [torch.tensor(0.1, device="meta")]
    assert "rates=[on meta]" in repr(scheduler)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    assert repr(copy.deepcopy(scheduler)) == repr(scheduler)


STEPS = {"total_steps": 10}


def test_it_changes_nothing_and_costs_little() -> None:
    quiet, shown = Run(), Run()
    quiet.train(range(60))
    for step in range(60):
        shown.train(range(step, step + 1))
        repr(shown.scheduler)
    assert torch.equal(quiet.point(), shown.point())
    start = time.perf_counter()
    for _ in range(100):
        repr(shown.scheduler)
    assert (time.perf_counter() - start) / 100 < 1e-3


def test_what_it_was_built_with_and_what_it_stands_at() -> None:
    """As in PyTorch: `base_lrs` are the optimiser's own, which only say how groups relate."""
    run = Run()
    run.train(range(60))
    assert run.scheduler.base_lrs == [1e-3, 1e-4]
    assert run.scheduler.get_last_lr() == [group["lr"] for group in run.optimizer.param_groups]
