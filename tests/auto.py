"""A small training under `hdet.AutoLR`, and the same with any other scheduler."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hdet


def model_of(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)


class Orthogonal(torch.optim.Optimizer):
    """Like Muon: matrices move by the orthogonal part of their momentum, the rest by its sign."""

    def __init__(self, params: Any, lr: float = 0.02, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                buffer = self.state[param].setdefault("buffer", torch.zeros_like(param))
                buffer.mul_(group["momentum"]).add_(param.grad)
                update = buffer.sign()
                if param.dim() == 2:
                    u, _, v = torch.linalg.svd(buffer, full_matrices=False)
                    update = u @ v
                param.add_(update, alpha=-float(group["lr"]))


OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda groups, **own: torch.optim.SGD(groups, momentum=0.9, **own),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Orthogonal": Orthogonal,
}


def optimizer_of(model: nn.Module, kind: str = "AdamW", **settings: Any) -> torch.optim.Optimizer:
    """Matrices, and the rest at a tenth of their rate."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    settings = {"lr": 1e-3, **settings}
    lr = settings.pop("lr")
    groups = [{"params": matrices, "lr": lr}, {"params": rest, "lr": lr * 0.1}]
    found: torch.optim.Optimizer = OPTIMIZERS[kind](groups, **settings)
    return found


def batch(step: int, size: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(size, 1, generator=generator, dtype=torch.float64)
    return x, x[:, :1] * x[:, 1:2] + x[:, 2:3].sin() + 0.1 * noise


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    x, y = batch(step)
    dtype = next(model.parameters()).dtype
    found: torch.Tensor = (model(x.to(dtype)) - y.to(dtype)).square().mean()
    return found


class Run:
    """A model, its optimiser and its scheduler."""

    def __init__(self, total_steps: int | None = 120, kind: str = "AdamW", **settings: Any) -> None:
        self.model = model_of()
        self.optimizer = optimizer_of(self.model, kind)
        settings = {"anneal": 0.5, **settings}
        self.scheduler = hdet.AutoLR(self.optimizer, total_steps, **settings)

    def train(self, steps: range, *, with_loss: bool = False) -> list[list[float]]:
        """The rates of each step's update."""
        rates = []
        for step in steps:
            rates.append([float(group["lr"]) for group in self.optimizer.param_groups])
            self.optimizer.zero_grad()
            loss = loss_of(self.model, step)
            loss.backward()
            self.optimizer.step()
            self.scheduler.step(*([loss] if with_loss else []))
        return rates

    def point(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1).clone() for p in self.model.parameters()])

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
