"""A small real training that runs the same way on processes and on virtual replicas."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

import hdet

# Every rank keeps its own running statistics; torch 2.13 renamed the argument.
_OWN_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(nn.parallel.DistributedDataParallel).parameters
    else "broadcast_buffers"
)

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "sgd-nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "sgd-coupled-decay": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "adam": (torch.optim.Adam, {}),
    "adam-amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adam-coupled-decay": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "adamw-default": (torch.optim.AdamW, {}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5}),
    "nadam": (torch.optim.NAdam, {}),
    "radam": (torch.optim.RAdam, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adamax": (torch.optim.Adamax, {}),
    "adafactor": (torch.optim.Adafactor, {}),
    "asgd": (torch.optim.ASGD, {}),
}


class Net(nn.Module):
    """Tanh layers, a scale and a norm: nothing whose gradient jumps under a change of rounding."""

    def __init__(self, *, batch_norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.norm = nn.BatchNorm1d(8) if batch_norm else nn.LayerNorm(8)
        self.second = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.tanh(self.norm(self.first(x)))) * self.scale
        return out


def build(
    optimizer: str, dtype: torch.dtype, *, batch_norm: bool = False
) -> tuple[Net, torch.optim.Optimizer]:
    """The same initial model on every rank, in two groups."""
    torch.manual_seed(1)
    model = Net(batch_norm=batch_norm).to(dtype)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    kind, settings = OPTIMIZERS[optimizer]
    return model, kind([{"params": matrices}, {"params": others}], lr=1e-2, **settings)


def batch(step: int, num_replicas: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """One global batch, four examples a replica."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(4 * num_replicas, 5, generator=generator, dtype=torch.float64)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3] - x[:, 4]], dim=1)
    return x.to(dtype), y.to(dtype)


def loss_fn(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x) - y).pow(2).mean()


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters and buffers as one float64 vector."""
    members = [*model.parameters(), *model.buffers()]
    return torch.cat([member.detach().double().reshape(-1).clone() for member in members])


SCHEDULE: dict[str, Any] = {
    "max_lr": [0.02, 0.01],
    "total_steps": 40,
    "spread_ratio": [0.4, 0.25],
    "cycle_steps": 10,
    "auto_lr": True,
    "warmup_steps": 20,
    "temperature": 0.01,
    "cycle_momentum": False,
}


def train_virtual(
    optimizer: str,
    num_replicas: int,
    dtype: torch.dtype,
    num_steps: int,
    *,
    exact: bool = True,
    batch_norm: bool = False,
    **overrides: Any,
) -> dict[str, Any]:
    """Each replica's vector after `num_steps`, the base values, and the vector after converge."""
    model, opt = build(optimizer, dtype, batch_norm=batch_norm)
    replicas = hdet.VirtualReplicas(num_replicas, exact=exact)
    settings = {**SCHEDULE, **overrides}
    scheduler = hdet.OneCycleLR(opt, **settings, replicas=replicas, model=model)
    ensemble = scheduler.ensemble
    for step in range(num_steps):
        losses = []
        for _, (x, y) in ensemble.fan_out(batch(step, num_replicas, dtype)):
            loss = loss_fn(model, x, y)
            losses.append(loss.detach())
            (loss / num_replicas).backward()
        opt.step()
        opt.zero_grad()
        scheduler.step(torch.stack(losses))
    vectors = []
    for replica in range(num_replicas):
        replicas.load(replica)
        vectors.append(flat(model))
    replicas.unload()
    scheduler.converge()
    return {
        "replicas": torch.stack(vectors),
        "base": ensemble.base_values,
        "converged": flat(model),
    }


def train_process(
    rank: int,
    optimizer: str,
    num_replicas: int,
    dtype: torch.dtype,
    num_steps: int,
    batch_norm: bool,
    gradients: str,
    overrides: dict[str, Any],
) -> dict[str, Any]:
    """The same on one rank, under DDP for shared gradients."""
    model, opt = build(optimizer, dtype, batch_norm=batch_norm)
    replicas = hdet.DistributedReplicas(gradients=gradients)
    wrapped: nn.Module = model
    if gradients == "shared":
        wrapped = nn.parallel.DistributedDataParallel(model, **{_OWN_BUFFERS: False})
    settings = {**SCHEDULE, **overrides}
    scheduler = hdet.OneCycleLR(opt, **settings, replicas=replicas, model=model)
    rates = []
    for step in range(num_steps):
        x, y = batch(step, num_replicas, dtype)
        own = slice(4 * rank, 4 * rank + 4)
        loss = loss_fn(wrapped, x[own], y[own])
        loss.backward()
        opt.step()
        opt.zero_grad()
        scheduler.step(loss)
        rates.append(scheduler.get_last_lr())
    apart = flat(model)
    scheduler.converge()
    return {
        "replica": apart,
        "base": scheduler.ensemble.base_values,
        "converged": flat(model),
        "rates": rates,
    }
