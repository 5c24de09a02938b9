"""Write this folder's files, with whichever version of the library is imported.

A file holds what each kind of run saved, and how that run itself went on. Those of older versions
were made by a check-out of that version::

    PYTHONPATH=<check-out>/src python tests/states/make.py tests/states/version_2.pt

Only what the oldest version had is used here, so that the script runs on all of them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hdet

STOP, END = 10, 25


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    found: torch.Tensor = (model(x) - x[:, :1]).square().mean()
    return found


def one_cycle(optimizer: torch.optim.Optimizer, _: nn.Module) -> Any:
    return hdet.OneCycleLR(
        optimizer,
        0.05,
        total_steps=40,
        spread_ratio=0.2,
        cycle_steps=5,
        auto_lr=True,
        warmup_steps=5,
        temperature=0.05,
        replicas=hdet.VirtualReplicas(3),
    )


def ensemble(optimizer: torch.optim.Optimizer, _: nn.Module) -> Any:
    return hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.2)],
        schedule=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97),
        cycle_steps=5,
        replicas=hdet.VirtualReplicas(3),
    )


def auto_lr(optimizer: torch.optim.Optimizer, _: nn.Module) -> Any:
    return hdet.AutoLR(optimizer, 40, anneal=0.4)


def probed(optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
    probe = hdet.Probe(lambda seed: loss_of(model, seed), list(range(900, 907)))
    controller = hdet.LongHorizonController(start_value=1e-3, climb_end=8, settle=1.0)
    return hdet.AutoLR(optimizer, 40, probe, controller=controller, anneal=0.4)


KINDS: dict[str, Callable[..., Any]] = {
    "one_cycle": one_cycle,
    "ensemble": ensemble,
    "auto_lr": auto_lr,
    "probed": probed,
}


class Run:
    """A model, its optimiser and one of `KINDS`."""

    def __init__(self, kind: str) -> None:
        self.model = model_of()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.scheduler = KINDS[kind](self.optimizer, self.model)
        self.ensemble = getattr(self.scheduler, "ensemble", self.scheduler)

    def train(self, steps: range) -> list[float]:
        """The base value after each step."""
        found = []
        for step in steps:
            loss = loss_of(self.model, step)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            count = self.ensemble.num_replicas
            losses = [loss.detach() * (1.0 + 0.1 * own) for own in range(count)]
            self.scheduler.step(torch.stack(losses) if count > 1 else losses[0])
            found.append(self.ensemble.base_values["lr/0"])
        return found

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def load(self, state: dict[str, Any]) -> None:
        for name, part in self.parts().items():
            part.load_state_dict(state[name])


def made(kind: str) -> dict[str, Any]:
    run = Run(kind)
    run.train(range(STOP))
    state = {name: copy.deepcopy(part.state_dict()) for name, part in run.parts().items()}
    return {"state": state, "went_on": run.train(range(STOP, END))}


if __name__ == "__main__":
    known = [kind for kind in KINDS if kind in ("one_cycle", "ensemble") or hasattr(hdet, "AutoLR")]
    torch.save({kind: made(kind) for kind in known}, sys.argv[1])
