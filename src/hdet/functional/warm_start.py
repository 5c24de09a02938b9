"""How far apart the replicas of a warm start begin (Eq. 10)."""

from __future__ import annotations

import math

from hdet import checks


def warm_noise_std(param_norm: float, num_params: int, noise_scale: float) -> float:
    r"""Eq. 10: $\epsilon \sim N(0, \nu^2 \|\theta_0\|^2 / d)$; the deviation of one entry.

    The noise vector then has an expected norm of about nu times the parameters' own.

    Args:
        param_norm: Euclidean norm of all parameters together, at least 0.
        num_params: d, the number of their entries, at least 1.
        noise_scale: nu, at least 0; the paper uses 0.01.

    >>> warm_noise_std(10.0, 25, 0.01)
    0.02
    """
    param_norm = checks.real(
        "param_norm", param_norm, low=0.0, remedy="take the norm of parameters that are finite"
    )
    num_params = checks.integer(
        "num_params", num_params, minimum=1, remedy="count the entries of all parameters"
    )
    noise_scale = checks.real("noise_scale", noise_scale, low=0.0, remedy="the paper uses 0.01")
    return noise_scale * param_norm / math.sqrt(num_params)
