"""A training in one process that is stopped and gone on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hdet

S = 60
CYCLE_STEPS = 7


def one_cycle(optimizer: torch.optim.Optimizer, model: nn.Module, replicas: int) -> Any:
    return hdet.OneCycleLR(
        optimizer,
        2e-2,
        total_steps=S,
        spread_ratio=0.3,
        cycle_steps=CYCLE_STEPS,
        auto_lr=True,
        warmup_steps=14,
        model=model,
        replicas=hdet.VirtualReplicas(replicas),
    )


def plain(optimizer: torch.optim.Optimizer, model: nn.Module, replicas: int) -> Any:
    return hdet.OneCycleLR(optimizer, 2e-2, total_steps=S, cycle_steps=CYCLE_STEPS)


def auto(optimizer: torch.optim.Optimizer, model: nn.Module, replicas: int) -> Any:
    return hdet.AutoLR(optimizer, S)


def exploring(optimizer: torch.optim.Optimizer, model: nn.Module, replicas: int) -> Any:
    return hdet.AutoLR(
        optimizer, S, spread_ratio=0.2, model=model, replicas=hdet.VirtualReplicas(replicas)
    )


def general(optimizer: torch.optim.Optimizer, model: nn.Module, replicas: int) -> Any:
    return hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.3)],
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=S),
        controller=hdet.PaperController(start_step=14),
        cycle_steps=CYCLE_STEPS,
        model=model,
        replicas=hdet.VirtualReplicas(replicas),
    )


def in_sequence(optimizer: torch.optim.Optimizer, model: nn.Module, replicas: int) -> Any:
    """A warmup of torch's, then ours."""
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)
    ours = hdet.OneCycleLR(optimizer, 2e-2, total_steps=S, cycle_steps=CYCLE_STEPS)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, ours], milestones=[5])


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer, nn.Module, int], Any]] = {
    "OneCycleLR with a spread": one_cycle,
    "OneCycleLR": plain,
    "AutoLR": auto,
    "AutoLR with a spread": exploring,
    "Ensemble": general,
    "SequentialLR": in_sequence,
}


class Run:
    """What a script builds, with BatchNorm, dropout and batches from torch's own generator."""

    def __init__(
        self,
        directory: Path,
        kind: str = "OneCycleLR with a spread",
        optimizer: str = "AdamW",
        *,
        replicas: int = 3,
        **settings: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)
        )
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=1e-2)
        self.scheduler = SCHEDULERS[kind](self.optimizer, self.model, replicas)
        own = getattr(self.scheduler, "ensemble", self.scheduler)
        self.ensemble = own if isinstance(own, hdet.Ensemble) else None
        self.checkpointer = hdet.Checkpointer(
            directory,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            **settings,
        )
        self.start = self.checkpointer.restore()

    def step(self) -> None:
        x = torch.randn(12, 4)
        if self.ensemble is None:
            self.model(x).square().mean().backward()
            losses = []
        else:
            losses = []
            for _, part in self.ensemble.fan_out(x):
                loss = (self.model(part) - part[:, :1] * part[:, 1:2]).square().mean()
                losses.append(loss.detach())
                (loss / self.ensemble.num_replicas).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step(*([torch.stack(losses)] if losses else []))
        self.checkpointer.step()

    def train(self, stop: int = S, *, save_at: int | None = None) -> torch.Tensor:
        """Go on up to a step; a checkpoint at ``save_at`` is one that was asked for."""
        for step in range(self.start, stop):
            self.step()
            if step + 1 == save_at:
                self.checkpointer.save()
        self.checkpointer.close()
        return self.point()

    def point(self) -> torch.Tensor:
        members = [*self.model.parameters(), *self.model.buffers()]
        return torch.cat([own.detach().double().reshape(-1).clone() for own in members])
