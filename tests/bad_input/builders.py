"""Short names for what the tables of bad input build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hdet
from hdet.errors import HDETError, InvalidTypeError, InvalidValueError, UsageError

Case = tuple[Callable[[], Any], type[HDETError], str]
"""(call, kind of error, pattern of its message)."""


def sgd(lr: Any = 0.1, groups: int = 1, **settings: Any) -> torch.optim.Optimizer:
    members = [{"params": [nn.Parameter(torch.ones(2))]} for _ in range(groups)]
    return torch.optim.SGD(members, lr=lr, momentum=0.9, **settings)


def one_cycle(**settings: Any) -> hdet.OneCycleLR:
    optimizer = settings.pop("optimizer", None)
    return hdet.OneCycleLR(
        sgd() if optimizer is None else optimizer, **{"max_lr": 0.1, "total_steps": 10, **settings}
    )


def auto_lr(**settings: Any) -> hdet.AutoLR:
    optimizer = settings.pop("optimizer", None)
    return hdet.AutoLR(sgd() if optimizer is None else optimizer, **{"total_steps": 10, **settings})


def ensemble(**settings: Any) -> hdet.Ensemble:
    optimizer = settings.pop("optimizer", None)
    defaults: dict[str, Any] = {"hyperparameters": [hdet.LearningRate(0)]}
    return hdet.Ensemble(sgd() if optimizer is None else optimizer, **{**defaults, **settings})


def virtual(**settings: Any) -> hdet.Ensemble:
    return ensemble(
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)],
        replicas=hdet.VirtualReplicas(4),
        **settings,
    )


def with_rate(rate: Any) -> torch.optim.Optimizer:
    optimizer = sgd()
    optimizer.param_groups[0]["lr"] = rate
    return optimizer


def stepped(scheduler: Any, *args: Any) -> None:
    scheduler.optimizer.step()
    scheduler.step(*args)


def saved(**changes: Any) -> dict[str, Any]:
    return {**ensemble().state_dict(), **changes}


def entry_of(**changes: Any) -> dict[str, Any]:
    """A saved state whose one hyperparameter has something else to say."""
    return saved(hyperparameters={"lr/0": {"base": 0.1, **changes}})


def torch_planned() -> hdet.Ensemble:
    optimizer = sgd()
    plan = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return ensemble(optimizer=optimizer, schedule=plan)


def loading(state: Any) -> Callable[[], None]:
    return lambda: one_cycle().load_state_dict(state)


def warm(param: torch.Tensor) -> Callable[[], None]:
    model = nn.Module()
    model.weight = param if isinstance(param, nn.Parameter) else nn.Parameter(param)
    return lambda: hdet.warm_start_(model)


VALUE, TYPE, USAGE = InvalidValueError, InvalidTypeError, UsageError
NAN, INF = float("nan"), float("inf")
ONES = torch.ones(3)
