"""What a cycle's losses say: weights (Eq. 4) and hypergradient (Eqs. 5-6)."""

from __future__ import annotations

import math

import torch

from hdet import checks
from hdet.errors import InvalidValueError


def softmax_weights(losses_R: torch.Tensor, temperature: float) -> torch.Tensor:
    r"""Eq. 4: $w = \mathrm{softmax}(s)$, $s_r = (\bar L - L_r) / \sigma$.

    Args:
        losses_R: each replica's mean loss over the cycle, finite.
        temperature: sigma, above 0, in units of the loss. The paper says 0.1 and its script 0.002.

    Returns:
        float64 tensor ``[R]`` that sums to 1; the lower a loss, the higher its weight.

    >>> softmax_weights(torch.tensor([2.0, 2.0]), temperature=0.1).tolist()
    [0.5, 0.5]
    """
    losses_R = checks.vector("losses_R", losses_R)
    temperature = checks.real(
        "temperature", temperature, low=0.0, low_open=True, remedy="the paper uses 0.1"
    )
    return torch.softmax((losses_R.mean() - losses_R) / temperature, dim=0)


def hypergradient(values_R: torch.Tensor, weights_R: torch.Tensor) -> float:
    r"""Eqs. 5-6: $\Delta = \tilde\eta - \bar\eta = \sum_r w_r \eta_r - \frac1N \sum_r \eta_r$.

    Positive when the replicas with higher values did better. Where the weights sum to 1, as Eq. 4's
    do, it is summed as $\sum_r (w_r - 1/N)(\eta_r - \eta_0)$, which equals the printed form and is
    exactly 0 for equal weights and for equal values, so that neither moves a base value by rounding
    alone. Other weights get the printed form.

    Args:
        values_R: the value that each replica trained with.
        weights_R: Eq. 4, one weight for each replica.

    >>> hypergradient(torch.tensor([1.0, 3.0]), torch.tensor([0.25, 0.75]))
    0.5
    """
    values_R = checks.vector("values_R", values_R)
    weights_R = checks.vector("weights_R", weights_R, length=len(values_R))
    if abs(float(weights_R.sum()) - 1.0) > 1e-6:
        return float((weights_R * values_R).sum() - values_R.mean())
    excess_R = weights_R - 1.0 / len(weights_R)
    return float((excess_R * (values_R - values_R[0])).sum())


def regression_slope(values_R: torch.Tensor, losses_R: torch.Tensor) -> tuple[float, float]:
    r"""Least squares: the slope $b$ of $L_r = a + b \log h_r$ and its standard error.

    Over the logarithm, so that rates of any size are comparable; values must be above 0. Needs
    three replicas: with two, every line fits. NaN and NaN where all values are equal.

    Args:
        values_R: the value that each replica trained with.
        losses_R: what each of them measured.

    >>> slope, stderr = regression_slope([1.0, 10.0, 100.0], [3.0, 2.0, 1.0])
    >>> round(slope, 6), round(stderr, 6)
    (-0.434294, 0.0)
    """
    values_R = checks.vector("values_R", values_R)
    losses_R = checks.vector("losses_R", losses_R, length=len(values_R))
    if len(values_R) < 3 or not bool((values_R > 0.0).all()):
        raise InvalidValueError(
            f"values_R must be at least three values above 0, got {values_R.tolist()}; leave out "
            "replicas that diverged, and take rates"
        )
    # Relative to the first, so that equal values are equal to the last bit.
    x_R = (values_R / values_R[0]).log()
    x_R = x_R - x_R.mean()
    spread = float(x_R.square().sum())
    if spread == 0.0:
        return math.nan, math.nan
    slope = float((x_R * losses_R).sum()) / spread
    rest_R = losses_R - losses_R.mean() - slope * x_R
    return slope, math.sqrt(float(rest_R.square().sum()) / (len(x_R) - 2) / spread)
