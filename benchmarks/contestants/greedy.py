"""The ablation that shows short-horizon bias: the slope over one cycle alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import hdet


class CycleProduct(hdet.AbstractSignal):
    r"""$s = \langle g, \theta - \theta_{start} \rangle$, from the start of the cycle only.

    The derivative of the loss by the log of the rate *over this cycle*: what a comparison of
    replicas that start each cycle from the same point would see. Noise that a lower rate would
    damp is all in it; progress beyond the cycle is not.
    """

    def __init__(self) -> None:
        self._params: list[torch.Tensor] = []
        self._start: list[torch.Tensor] = []
        self._samples: list[torch.Tensor] = []
        self._num_groups = self._num_steps = 0

    @property
    def needs_loss(self) -> bool:
        """Gradients say it all."""
        return False

    @property
    def has_trends(self) -> bool:
        """One for all groups."""
        return True

    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[int],
        rate: Callable[[int], float],
        num_processes: int = 1,
    ) -> None:
        """Follow the optimiser's steps."""
        del rate, num_processes
        self._num_groups = len(groups)
        self._params = [p for group in groups for p in optimizer.param_groups[group]["params"]]
        optimizer.register_step_pre_hook(self._before_step)

    def observe(self, losses_L: torch.Tensor) -> None:  # noqa: N803
        """Losses are not looked at."""

    def measure(self, num_local: int, device: torch.device) -> torch.Tensor:
        """Nor reported."""
        return torch.full((num_local,), math.nan, device=device, dtype=torch.float64)

    def reset(self, num_steps: int) -> None:
        """Start the next cycle where the parameters stand."""
        self._num_steps = num_steps
        self._samples = []
        self._start = [param.detach().clone() for param in self._params] if num_steps else []

    def statistics(self) -> torch.Tensor:
        """Slope, the variance of its mean, alignment, and how far the cycle has moved."""
        if len(self._samples) < 2:
            return torch.full((4,), math.nan)
        slope, cosine, moved = torch.stack(self._samples).double().unbind(dim=1)
        variance = slope.var() / len(slope)
        return torch.stack([slope.mean(), variance, cosine.nanmean(), moved[-1]])

    def trends(
        self,
        rows_RK: Sequence[Sequence[float]],  # noqa: N803
        *,
        independent: bool,
    ) -> list[hdet.Trend]:
        """The same for every group."""
        del independent
        slope, variance, alignment, moved = torch.tensor(rows_RK).double().mean(dim=0).tolist()
        trend = hdet.Trend(slope, math.sqrt(variance), abs(slope), alignment, moved)
        return [trend] * self._num_groups

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        if not self._num_steps:
            return
        present = [(p, s) for p, s in zip(self._params, self._start, strict=True)]
        dots, gradients, paths, sizes = [], [], [], []
        for param, start in present:
            sizes.append(param.square().sum())
            if param.grad is None:
                continue
            path = param - start
            dots.append((param.grad * path).sum())
            gradients.append(param.grad.square().sum())
            paths.append(path.square().sum())
        dot, gradient_2, path_2, size_2 = (
            torch.stack(parts).sum() for parts in (dots, gradients, paths, sizes)
        )
        cosine = dot / (gradient_2 * path_2).sqrt()  # NaN where nothing has moved yet
        self._samples.append(torch.stack([dot, cosine, (path_2 / size_2).sqrt()]))
