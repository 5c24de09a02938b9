"""Ratings that users give to items: a synthetic table, factorised."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from benchmarks.tasks.base import Batch, Task, epochs_order

NUM_USERS, NUM_ITEMS = 1500, 800
NUM_RATINGS, NUM_HELD_OUT = 100_000, 20_000
RANK, WIDTH = 4, 16
NOISE = 0.7


@functools.cache
def _data() -> Batch:
    """Users, items and ratings: tastes of rank four, habits, noise; few are asked for most."""
    generator = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def popular(num: int) -> torch.Tensor:
        chances = torch.arange(1.0, num + 1.0).pow(-0.6)
        return torch.multinomial(chances, NUM_RATINGS, replacement=True, generator=generator)

    users, items = popular(NUM_USERS), popular(NUM_ITEMS)
    tastes = (normal(NUM_USERS, RANK)[users] * normal(NUM_ITEMS, RANK)[items]).sum(1) / RANK**0.5
    habits = 0.4 * normal(NUM_USERS)[users] + 0.6 * normal(NUM_ITEMS)[items]
    ratings = (3.5 + 0.7 * tastes + habits + NOISE * normal(NUM_RATINGS)).clamp(1.0, 5.0)
    return users, items, ratings


class Factors(nn.Module):
    """The mean, a habit of each user and item, and the product of two embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(NUM_USERS, WIDTH), nn.Embedding(NUM_ITEMS, WIDTH)
        self.habits = nn.ModuleList(nn.Embedding(num, 1) for num in (NUM_USERS, NUM_ITEMS))
        self.mean = nn.Parameter(torch.tensor(3.0))
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)
        for habit in self.habits:
            nn.init.zeros_(habit.weight)  # type: ignore[arg-type]  # a Tensor, not a Module

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """Ratings ``[n]``."""
        habits = self.habits[0](users) + self.habits[1](items)
        tastes = (self.users(users) * self.items(items)).sum(1)
        ratings: torch.Tensor = self.mean + habits.squeeze(1) + tastes
        return ratings


class Ratings(Task):
    """Factorisation of a sparse table of noisy ratings, six epochs, AdamW, three groups."""

    name = "ratings"
    total_steps = 1872
    family = "adamw"
    settings = {"betas": (0.9, 0.999)}  # noqa: RUF012

    def build(self) -> nn.Module:
        """About 39 000 parameters, of which a batch touches a few."""
        return Factors()

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Tastes of users, tastes of items, and all that is no taste."""
        assert isinstance(model, Factors)
        return [
            {"name": "users", "params": [model.users.weight], "weight_decay": 0.2},
            {"name": "items", "params": [model.items.weight], "weight_decay": 0.2},
            {
                "name": "habits",
                "params": [model.mean, *model.habits.parameters()],
                "weight_decay": 0.0,
            },
        ]

    def batch(self, step: int, seed: int) -> Batch:
        """Shuffled epochs."""
        own = epochs_order(NUM_RATINGS - NUM_HELD_OUT, 256, step, seed) + NUM_HELD_OUT
        return tuple(column[own] for column in _data())

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean squared error."""
        return nn.functional.mse_loss(model(batch[0], batch[1]), batch[2])

    def held_out(self) -> list[Batch]:
        """Twenty thousand ratings of the same users and items."""
        return [tuple(column[:NUM_HELD_OUT] for column in _data())]
