"""The method once more, written from `docs/method.md` alone: slow, literal, plain float64 Python.

Nothing of hdet is imported. Where the library vectorises, skips or reorders, this does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def multipliers(n: int, alpha: float) -> list[float]:
    """Eq. 1."""
    delta = max((n - 1) / 2, 0.5)
    return [1 + alpha * (r - (n - 1) / 2) / delta for r in range(n)]


def weights(losses: Sequence[float], sigma: float) -> list[float]:
    """Eq. 4."""
    mean = sum(losses) / len(losses)
    scores = [(mean - loss) / sigma for loss in losses]
    top = max(scores)
    exponentials = [math.exp(score - top) for score in scores]
    return [e / sum(exponentials) for e in exponentials]


def delta(values: Sequence[float], w: Sequence[float]) -> float:
    """Eqs. 5 and 6."""
    eta_tilde = sum(wr * eta for wr, eta in zip(w, values, strict=True))
    eta_bar = sum(values) / len(values)
    return eta_tilde - eta_bar


def meta_update(
    v: float, d: float, eta_bar: float, beta: float, lam: float, gamma: float
) -> tuple[float, float]:
    """Eq. 7."""
    v = beta * v + (1 - beta) * d
    return v, eta_bar * (1 - gamma) + lam * v


def gamma_literal(f_div: float, f_final: float, k: float) -> float:
    """Eq. 8 as printed."""
    return 1 - math.exp(-math.log(f_div / f_final) / k)


def gamma_corrected(start: float, floor: float, k: float) -> float:
    """Eq. 8 corrected: k cycles take `start` to `floor`."""
    return 1 - (floor / start) ** (1 / k)


def warm_noise_std(norm: float, d: int, nu: float) -> float:
    """Eq. 10."""
    return math.sqrt(nu**2 * norm**2 / d)


def one_cycle(
    step: int,
    max_lr: float,
    total_steps: int,
    pct_start: float = 0.3,
    f_div: float = 25.0,
    f_final: float = 1e4,
) -> float:
    """OneCycleLR's two phases with cosine annealing."""
    initial = max_lr / f_div
    floor = initial / f_final
    peak = pct_start * total_steps - 1
    if step <= peak:
        start, end, pct = initial, max_lr, step / peak
    else:
        start, end, pct = max_lr, floor, (step - peak) / (total_steps - 1 - peak)
    return end + (start - end) / 2 * (math.cos(math.pi * pct) + 1)


def algorithm_1(
    *,
    num_steps: int,
    total_steps: int,
    max_lrs: Sequence[float],
    n: int,
    alpha: float,
    cycle_steps: int,
    warmup_steps: int | None,
    losses: Callable[[int, list[list[float]]], list[float]],
    permutation: Callable[[int, int], Sequence[int]],
    sigma: float = 0.1,
    beta: float = 0.9,
    lam: float = 0.5,
    literal: bool = False,
    f_div: float = 25.0,
    f_final: float = 1e4,
    rescue: bool = False,
) -> list[list[list[float]]]:
    """Rates `[step][group][replica]` for steps 0 .. num_steps; by default the printed equations.

    `rescue` keeps a tenth of a decayed rate where Eq. 7 would leave none.

    `warmup_steps=None` is auto-LR off. `losses(step, rates)` gives each replica's training loss at
    a step, and `permutation(cycle, group)` Eq. 9's pi.
    """
    groups = range(len(max_lrs))
    rho = multipliers(n, alpha)
    order = [list(range(n)) for _ in groups]
    eta_bar = [one_cycle(0, lr, total_steps, f_div=f_div, f_final=f_final) for lr in max_lrs]
    gammas: list[float] = []
    velocity = [0.0 for _ in groups]
    cycle_losses: list[list[float]] = []
    history = []
    for step in range(num_steps + 1):
        # After `step` optimiser steps: what rate does the next one use?
        in_charge = warmup_steps is not None and step >= warmup_steps
        if warmup_steps is not None and in_charge and not gammas:
            k = (total_steps - warmup_steps) / cycle_steps
            gammas = _gammas(eta_bar, max_lrs, k, f_div, f_final, literal)
        if step > 0 and step % cycle_steps == 0:
            mean_losses = [sum(own) / len(own) for own in zip(*cycle_losses, strict=True)]
            cycle_losses = []
            for g in groups if in_charge else ():
                eta = [eta_bar[g] * rho[order[g][r]] for r in range(n)]
                d = delta(eta, weights(mean_losses, sigma))
                before = eta_bar[g]
                velocity[g], eta_bar[g] = meta_update(velocity[g], d, before, beta, lam, gammas[g])
                if rescue and eta_bar[g] <= 0:  # ours, not the paper's
                    velocity[g], eta_bar[g] = 0.0, 0.1 * before * (1 - gammas[g])
            order = [list(permutation(step // cycle_steps, g)) for g in groups]
        if not in_charge:
            eta_bar = [
                one_cycle(step, lr, total_steps, f_div=f_div, f_final=f_final) for lr in max_lrs
            ]
        rates = [[eta_bar[g] * rho[order[g][r]] for r in range(n)] for g in groups]
        history.append(rates)
        if step < num_steps:
            cycle_losses.append(losses(step, rates))
    return history


def _gammas(
    eta_bar: Sequence[float],
    max_lrs: Sequence[float],
    k: float,
    f_div: float,
    f_final: float,
    literal: bool,
) -> list[float]:
    if literal:
        return [gamma_literal(f_div, f_final, k) for _ in max_lrs]
    floors = [lr / (f_div * f_final) for lr in max_lrs]
    return [gamma_corrected(start, floor, k) for start, floor in zip(eta_bar, floors, strict=True)]


def shared_gradient_sgd(
    *,
    start: Sequence[float],
    gradient: Callable[[int, int, list[float]], list[float]],
    rates: Callable[[int], Sequence[float]],
    n: int,
    num_steps: int,
    cycle_steps: int,
    momentum: float,
) -> list[list[float]]:
    """Eqs. 2 and 3 for SGD with momentum: each replica's parameters after `num_steps`.

    `gradient(step, replica, theta)` is one replica's own; the mean of all is applied by each, with
    its own rate `rates(step)[replica]`. At a multiple of `cycle_steps` parameters become their
    mean.
    """
    thetas = [list(start) for _ in range(n)]
    buffers = [[0.0 for _ in start] for _ in range(n)]
    for step in range(num_steps):
        own = [gradient(step, r, thetas[r]) for r in range(n)]
        shared = [sum(g[i] for g in own) / n for i in range(len(start))]
        for r in range(n):
            for i, g in enumerate(shared):
                buffers[r][i] = momentum * buffers[r][i] + g
                thetas[r][i] -= rates(step)[r] * buffers[r][i]
        if (step + 1) % cycle_steps == 0:
            mean = [sum(theta[i] for theta in thetas) / n for i in range(len(start))]
            thetas = [list(mean) for _ in range(n)]
    return thetas
