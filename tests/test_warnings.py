"""Warnings point at the user's own line, however deep in the library they arise."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hdet


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)


def scheduler(**settings: Any) -> hdet.OneCycleLR:
    return hdet.OneCycleLR(optimizer(), 0.1, total_steps=10, **settings)


def one(**settings: Any) -> hdet.Ensemble:
    return hdet.Ensemble(
        optimizer(), hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)], **settings
    )


def stepped() -> hdet.OneCycleLR:
    live = scheduler(spread_ratio=0.1, cycle_steps=5, replicas=hdet.VirtualReplicas(2))
    live.optimizer.step()
    live.step()
    return live


SPREAD: dict[str, Any] = {"spread_ratio": 0.1}
CASES: dict[str, tuple[Callable[[], Any], Callable[..., Any], str]] = {
    "a spread on one replica": (lambda: scheduler(**SPREAD, cycle_steps=5), scheduler, "single"),
    "the same with an ensemble": (one, one, "single replica"),
    "a cycle longer than the run": (
        lambda: scheduler(**SPREAD, replicas=hdet.VirtualReplicas(2)),
        scheduler,
        "longer than the run",
    ),
    "the same with an ensemble, by its own": (
        lambda: one(replicas=hdet.VirtualReplicas(2), total_steps=3),
        one,
        "longer than the run",
    ),
    "a controller that never starts": (
        lambda: scheduler(
            **SPREAD,
            cycle_steps=5,
            auto_lr=True,
            warmup_steps=10,
            replicas=hdet.VirtualReplicas(2),
        ),
        scheduler,
        "never starts",
    ),
    "a controller without a spread": (
        lambda: scheduler(auto_lr=True, cycle_steps=5),
        scheduler,
        "nothing to compare",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_warning_points_at_the_call(name: str) -> None:
    call, builder, message = CASES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (found,) = caught
    assert message in str(found.message)
    assert issubclass(found.category, hdet.HDETWarning)
    assert found.filename == __file__
    lines, start = inspect.getsourcelines(builder)
    assert start < found.lineno < start + len(lines)


def test_a_warning_at_a_save_points_at_the_save() -> None:
    live = stepped()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        live.state_dict()
    (found,) = caught
    assert found.filename == __file__
    lines, start = inspect.getsourcelines(test_a_warning_at_a_save_points_at_the_save)
    assert lines[found.lineno - start].strip() == "live.state_dict()"


@pytest.mark.parametrize("kind", [torch.optim.lr_scheduler.OneCycleLR, hdet.OneCycleLR])
def test_another_length_is_warned_of_once_where_it_is_loaded(kind: Any) -> None:
    """Also with a state of PyTorch's own scheduler."""
    saved = kind(optimizer(), 0.1, total_steps=30).state_dict()
    live = scheduler()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            live.load_state_dict(saved)
    (found,) = caught
    assert found.filename == __file__
    assert str(found.message) == (
        "total_steps=10 gives way to total_steps=30 of the run that was saved, as in PyTorch; "
        "build the scheduler with total_steps=30, or start a new schedule without this state"
    )
    for _ in range(30):
        live.optimizer.step()
        live.step()
    with pytest.raises(ValueError, match="30"):
        live.step()


def test_a_warning_that_is_made_an_error_leaves_the_scheduler_as_it_was() -> None:
    live = scheduler()
    before = live.state_dict()
    with pytest.raises(hdet.HDETWarning, match="gives way"):
        live.load_state_dict(hdet.OneCycleLR(optimizer(), 0.1, total_steps=30).state_dict())
    assert live.state_dict() == before
