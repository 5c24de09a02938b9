"""Who takes part: tuned schedules on a grid of rates, rate-free peers, and ours."""

from __future__ import annotations

from torch import nn

from benchmarks.contestants.base import Contestant, base_optimizer
from benchmarks.contestants.ours import ABLATIONS, OURS, auto, is_ours
from benchmarks.contestants.peers import PEERS, peer
from benchmarks.contestants.schedules import (
    RATES,
    SCHEDULES,
    Scheduled,
    column,
    grid,
    with_neighbours,
)
from benchmarks.tasks import Task


def build(name: str, task: Task, model: nn.Module, seed: int = 0) -> Contestant:
    """The contestant of that name: ``schedule@rate``, a peer, or one of ours."""
    if "@" in name:
        schedule, rate = name.split("@")
        return Scheduled(task, model, schedule, float(rate))
    if is_ours(name):
        return auto(name, task, model, seed)
    return peer(name, task, model)


__all__ = [
    "ABLATIONS",
    "OURS",
    "PEERS",
    "RATES",
    "SCHEDULES",
    "Contestant",
    "base_optimizer",
    "build",
    "column",
    "grid",
    "is_ours",
    "with_neighbours",
]
