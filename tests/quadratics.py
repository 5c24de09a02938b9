"""Noisy quadratics of known curvature: the exact expected loss of any schedule, and the best rate.

Plain SGD on sum h_i x_i^2 / 2 with gradient noise of a known size keeps a mean and a variance for
each coordinate, so that a schedule is judged without running it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import hdet

SIZE = 64


def curvatures(condition: float) -> torch.Tensor:
    return torch.logspace(0.0, -float(torch.tensor(condition).log10()), SIZE, dtype=torch.float64)


def hold_then_anneal(num_steps: int) -> list[float]:
    """The shape of `AutoLR` with its default anneal, without the climb."""
    return [hdet.functional.hold_then_anneal(t, num_steps, anneal=0.4) for t in range(num_steps)]


def expected_losses(
    condition: float, noise: float, peaks: Sequence[float], shape: Sequence[float]
) -> torch.Tensor:
    """The expected final loss for each peak rate, from a start of ones."""
    h, rates = curvatures(condition), torch.tensor(peaks, dtype=torch.float64)[:, None]
    mean = torch.ones(len(peaks), SIZE, dtype=torch.float64)
    variance = torch.zeros_like(mean)
    for factor in shape:
        kept = 1.0 - rates * factor * h
        mean, variance = mean * kept, variance * kept**2 + (rates * factor * noise) ** 2
    losses = (h * (mean**2 + variance)).sum(dim=1) / 2.0
    return losses.nan_to_num(nan=float("inf"))


def best(condition: float, noise: float, num_steps: int) -> tuple[float, float]:
    """The best peak of a fine grid, and its expected loss."""
    grid = [2.2 * 2.0 ** (-i / 4) for i in range(60)]
    losses = expected_losses(condition, noise, grid, hold_then_anneal(num_steps))
    index = int(losses.argmin())
    assert 0 < index < len(grid) - 1, "the grid holds the best rate inside"
    return grid[index], float(losses[index])


def found(
    condition: float, noise: float, num_steps: int, *, seed: int = 0, **settings: Any
) -> tuple[float, float]:
    """The rate of `AutoLR` at the end of the hold, and the expected loss of its whole schedule."""
    generator = torch.Generator().manual_seed(seed)
    h = curvatures(condition)
    param = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.float64))
    optimizer = torch.optim.SGD([param], lr=0.1)
    controller = hdet.LongHorizonController(climb_end=num_steps // 3, **settings)
    scheduler = hdet.AutoLR(optimizer, num_steps, controller=controller)
    rates = []
    for _ in range(num_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        draw = torch.randn(SIZE, generator=generator, dtype=torch.float64)
        param.grad = h * param.detach() + noise * draw
        optimizer.step()
        scheduler.step()
    loss = expected_losses(condition, noise, [1.0], rates)
    return rates[int(0.6 * num_steps) - 1], float(loss[0])
