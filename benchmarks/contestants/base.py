"""What every contestant does: it is built for one run and then only steps."""

from __future__ import annotations

import abc
from typing import Any, Protocol

import torch
from torch import nn

from benchmarks.tasks import Task

NORM_BATCHES = 50
"""From which BatchNorm's statistics are drawn anew where weights are judged at an average."""


class Contestant(abc.ABC):
    """An optimiser and what goes with it; ``after_backward`` follows ``backward()``."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        self.task = task
        self.model = model

    @abc.abstractmethod
    def after_backward(self, loss: torch.Tensor) -> None:
        """Update the parameters."""

    def finish(self) -> None:
        """Make the model what is to be judged; as it stands, unless a contestant says otherwise."""
        return

    @property
    def rates(self) -> list[float]:
        """The rate of each parameter group now, for the record."""
        return []

    def clip(self) -> None:
        """As the task says."""
        if self.task.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip)


class Scheduler(Protocol):
    """What `Steered` asks of a torch scheduler."""

    def step(self) -> None:
        """Follow one ``optimizer.step()``."""

    def get_last_lr(self) -> list[Any]:
        """The rates in use."""


class Steered(Contestant):
    """The task's own optimiser and a scheduler."""

    optimizer: torch.optim.Optimizer
    scheduler: Scheduler

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


def base_optimizer(task: Task, model: nn.Module, lr: float | None = None) -> torch.optim.Optimizer:
    """AdamW or SGD as the task has it; without a rate, at PyTorch's default."""
    kind: type[Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[task.family]
    given = {} if lr is None else {"lr": lr}
    optimizer: torch.optim.Optimizer = kind(task.groups(model), **given, **task.settings)
    return optimizer
