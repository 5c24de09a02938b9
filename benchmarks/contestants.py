"""Who takes part: tuned schedules on a grid of rates, rate-free peers, and ours.

A contestant is built for one run and then only steps: ``after_backward`` follows ``backward()``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.tasks import Task
from hdet import functional

SCHEDULES: dict[str, Callable[..., float]] = {
    "one_cycle": functional.one_cycle,
    "hold_then_anneal": functools.partial(functional.hold_then_anneal, anneal=0.4),
    "cosine": functional.cosine,
}
RATES = {
    "adamw": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1],
    "sgd": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0],
}
WARMUP_PART = 0.05
"""Of hold-then-anneal and cosine; one cycle brings its own."""


class Contestant:
    """An optimiser and what goes with it."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        self.task = task
        self.model = model

    def after_backward(self, loss: torch.Tensor) -> None:
        """Update the parameters."""
        raise NotImplementedError

    def finish(self) -> None:
        """Make the model what is to be judged."""

    @property
    def rates(self) -> list[float]:
        """The rate of each parameter group now, for the record."""
        return []

    def clip(self) -> None:
        """As the task says."""
        if self.task.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip)


def base_optimizer(task: Task, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """AdamW or SGD as the task has it."""
    kind: type[Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[task.family]
    optimizer: torch.optim.Optimizer = kind(task.groups(model), lr=lr, **task.settings)
    return optimizer


class Scheduled(Contestant):
    """One cell of the grid."""

    def __init__(self, task: Task, model: nn.Module, schedule: str, lr: float) -> None:
        super().__init__(task, model)
        self.optimizer = base_optimizer(task, model, lr)
        total = task.total_steps
        warmup = {} if schedule == "one_cycle" else {"warmup_steps": int(WARMUP_PART * total)}
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: SCHEDULES[schedule](min(step, total - 1), total, **warmup),
        )

    def after_backward(self, loss: torch.Tensor) -> None:
        """A step of the optimiser and one of the scheduler."""
        del loss
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()

    @property
    def rates(self) -> list[float]:
        """From the scheduler."""
        return [float(rate) for rate in self.scheduler.get_last_lr()]


class Peer(Contestant):
    """A rate-free optimiser at its own defaults, held and annealed where it asks for a schedule."""

    def __init__(
        self, task: Task, model: nn.Module, make: Callable[[Any], Any], *, schedule: bool
    ) -> None:
        super().__init__(task, model)
        self.optimizer = make(task.groups(model))
        self.scheduler = None
        if schedule:
            total = task.total_steps
            self.scheduler = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer, lambda step: functional.cosine(min(step, total - 1), total)
            )
        self._call("train")

    def _call(self, mode: str) -> None:
        if hasattr(self.optimizer, mode):
            getattr(self.optimizer, mode)()

    def after_backward(self, loss: torch.Tensor) -> None:
        """The peer's own step."""
        del loss
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.scheduler is not None:
            self.scheduler.step()

    def finish(self) -> None:
        """Schedule-Free is judged at its average, whose BatchNorm statistics are drawn anew."""
        if not hasattr(self.optimizer, "eval"):
            return
        self._call("eval")
        norms = [m for m in self.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if norms:
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None
            with torch.no_grad():
                for step in range(50):
                    self.task.loss(self.model, self.task.batch(step, 0))


def _class(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _peers(task: Task) -> dict[str, tuple[Callable[[Any], Any], bool]]:
    """Name -> optimiser and whether its authors want a schedule on top."""
    sgd = task.family == "sgd"
    settings = dict(task.settings)
    betas = {} if sgd else {"betas": settings["betas"]}
    momentum = {"momentum": 0.9}
    return {
        "schedulefree": (
            (lambda g: _class("schedulefree", "SGDScheduleFree")(g, lr=1.0, **momentum))
            if sgd
            else (lambda g: _class("schedulefree", "AdamWScheduleFree")(g)),
            False,
        ),
        "prodigy": (
            lambda g: _class("prodigyopt", "Prodigy")(g, decouple=True, **betas),
            True,
        ),
        "dadapt": (
            (lambda g: _class("dadaptation", "DAdaptSGD")(g, **momentum))
            if sgd
            else (lambda g: _class("dadaptation", "DAdaptAdam")(g, decouple=True, **betas)),
            True,
        ),
        "mechanic": (
            (
                lambda g: _class("mechanic_pytorch", "mechanize")(torch.optim.SGD)(
                    g, lr=1.0, **momentum
                )
            )
            if sgd
            else (
                lambda g: _class("mechanic_pytorch", "mechanize")(torch.optim.AdamW)(
                    g, lr=1.0, **betas
                )
            ),
            True,
        ),
        "dog": (lambda g: _class("dog", "LDoG")(g), False),
    }


PEERS = ("schedulefree", "prodigy", "dadapt", "mechanic", "dog")


def build(name: str, task: Task, model: nn.Module) -> Contestant:
    """The contestant of that name: ``schedule@rate`` or a peer."""
    if "@" in name:
        schedule, rate = name.split("@")
        return Scheduled(task, model, schedule, float(rate))
    make, schedule_on_top = _peers(task)[name]
    return Peer(task, model, make, schedule=schedule_on_top)


def grid(task: Task) -> list[str]:
    """The 21 cells."""
    return [f"{schedule}@{rate:g}" for schedule in SCHEDULES for rate in RATES[task.family]]
