"""Small runs that can be stopped anywhere, on virtual replicas or on processes."""

from __future__ import annotations

import copy
import functools
import io
from typing import Any

import torch
import torch.distributed as dist

import hdet
from tests import training

S = 23
SETTINGS: dict[str, Any] = {
    "max_lr": [0.05, 0.02],
    "total_steps": S,
    "spread_ratio": [0.4, 0.25],
    "cycle_steps": 5,
    "auto_lr": True,
    "warmup_steps": 7,
    "temperature": 0.02,
    "cycle_momentum": False,
}


def through_a_file(state: Any) -> Any:
    """As a checkpoint goes: saved whole, loaded without running anything."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


class Run:
    """A model in two groups, its optimiser, and `OneCycleLR` or an `Ensemble` in front of it.

    Args:
        kind: a name of `training.OPTIMIZERS`.
        num_replicas: how many replicas there are.
        rank: this process's, or None for virtual replicas.
        general: an `hdet.Ensemble` with the paper's controller instead of a scheduler.
        **settings: the scheduler's.
    """

    def __init__(
        self,
        kind: str,
        num_replicas: int,
        rank: int | None = None,
        *,
        general: bool = False,
        gradients: str = "shared",
        **settings: Any,
    ) -> None:
        self.num_replicas, self.rank = num_replicas, rank
        self.shares = gradients == "shared"
        self.model, self.optimizer = training.build(kind, torch.float32, batch_norm=True)
        replicas: Any = hdet.VirtualReplicas(num_replicas)
        if rank is not None:
            replicas = hdet.DistributedReplicas(gradients=gradients)
        common = {"replicas": replicas, "model": self.model}
        if general:
            self.scheduler: Any = hdet.Ensemble(
                self.optimizer,
                hyperparameters=[hdet.LearningRate(g, spread_ratio=0.3) for g in range(2)],
                total_steps=S,
                schedule=functools.partial(hdet.functional.cosine, total_steps=S),
                controller=hdet.PaperController(start_step=6, temperature=0.02),
                cycle_steps=5,
                **common,
            )
        else:
            self.scheduler = hdet.OneCycleLR(self.optimizer, **{**SETTINGS, **settings}, **common)
        self.ensemble: hdet.Ensemble = getattr(self.scheduler, "ensemble", self.scheduler)

    def train(self, steps: range) -> list[list[float]]:
        """The base values and this process's rates after each step."""
        found = []
        for step in steps:
            data = training.batch(step, 4, torch.float32)  # of one size at any number of replicas
            self.scheduler.step(self._virtual(data) if self.rank is None else self._own(data))
            rates = [float(group["lr"]) for group in self.optimizer.param_groups]
            found.append([*self.ensemble.base_values.values(), *rates])
        return found

    def _virtual(self, data: Any) -> torch.Tensor:
        losses = []
        for _, (x, y) in self.ensemble.fan_out(data):
            loss = training.loss_fn(self.model, x, y)
            losses.append(loss.detach())
            (loss / self.num_replicas).backward()
        self._update()
        return torch.stack(losses)

    def _own(self, data: Any) -> torch.Tensor:
        x, y = (part.chunk(self.num_replicas)[self.rank or 0] for part in data)
        loss = training.loss_fn(self.model, x, y)
        loss.backward()
        for param in self.model.parameters() if self.shares else ():
            dist.all_reduce(param.grad)
            assert param.grad is not None
            param.grad /= self.num_replicas
        self._update()
        return loss.detach()

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def save(self) -> dict[str, Any]:
        """Converge, then save: the documented rule."""
        self.scheduler.converge()
        return {name: copy.deepcopy(part.state_dict()) for name, part in self.parts().items()}

    def load(self, state: dict[str, Any]) -> None:
        for name, part in self.parts().items():
            part.load_state_dict(state[name])

    def end(self) -> torch.Tensor:
        self.scheduler.converge()
        return training.flat(self.model)
