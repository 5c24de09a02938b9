"""The tuned baseline: three schedules on a grid of seven rates."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.contestants.base import Steered, base_optimizer
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


class Scheduled(Steered):
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


def column(family: str, schedule: str) -> list[str]:
    """The cells of a schedule, by rate."""
    return [f"{schedule}@{rate:g}" for rate in RATES[family]]


def grid(task: Task | type[Task]) -> list[str]:
    """The 21 cells."""
    return [cell for schedule in SCHEDULES for cell in column(task.family, schedule)]


def with_neighbours(family: str, cell: str) -> list[str]:
    """A cell and those of the next lower and the next higher rate, where there are such."""
    own = column(family, cell.split("@")[0])
    index = own.index(cell)
    return own[max(index - 1, 0) : index + 2]
