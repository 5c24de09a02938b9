"""Rate-free optimisers and schedulers of others, each at its own defaults."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.contestants.base import NORM_BATCHES, Contestant, Steered, base_optimizer
from benchmarks.tasks import Task
from hdet import functional

PEERS = ("schedulefree", "prodigy", "dadapt", "mechanic", "dog", "greedylr")


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
                for step in range(NORM_BATCHES):
                    self.task.loss(self.model, self.task.batch(step, 0))


class Greedy(Steered):
    """Transformers' GreedyLR at its defaults, on the optimiser's own, fed with each step's loss."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__(task, model)
        self.optimizer = base_optimizer(task, model)
        self._greedy = _class("transformers.optimization", "GreedyLR")(self.optimizer)
        self.scheduler = self._greedy

    def after_backward(self, loss: torch.Tensor) -> None:
        """A step of the optimiser, and one of the scheduler that reads the loss."""
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._greedy.step(loss.item())


def _class(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this peer needs the package that has {module}; pip install 'hdet[bench]'"
        ) from error


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


def peer(name: str, task: Task, model: nn.Module) -> Contestant:
    """The peer of that name."""
    if name == "greedylr":
        return Greedy(task, model)
    make, schedule_on_top = _peers(task)[name]
    return Peer(task, model, make, schedule=schedule_on_top)
