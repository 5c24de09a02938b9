"""How a base value moves: the momentum meta-update (Eq. 7) and its decay (Eq. 8)."""

from __future__ import annotations

import math

from hdet import checks
from hdet.errors import InvalidValueError


def meta_update(
    velocity: float,
    delta: float,
    base: float,
    *,
    meta_momentum: float,
    meta_lr: float,
    base_decay: float,
) -> tuple[float, float]:
    r"""Eq. 7: $v \gets \beta v + (1-\beta)\Delta$, $\bar\eta \gets \bar\eta(1-\gamma) + \lambda v$.

    Args:
        velocity: v, the smoothed hypergradient; 0 at the start.
        delta: Eq. 6.
        base: the shared base value.
        meta_momentum: beta in [0, 1).
        meta_lr: lambda, at least 0.
        base_decay: gamma, below 1; the printed Eq. 8 gives a negative one, which grows the base.

    Returns:
        The new ``(velocity, base)``.

    >>> meta_update(0.0, 0.5, 1.0, meta_momentum=0.5, meta_lr=1.0, base_decay=0.25)
    (0.25, 1.0)
    """
    velocity = checks.real("velocity", velocity, remedy="start at 0")
    delta = checks.real("delta", delta, remedy="leave out replicas that diverged")
    base = checks.real("base", base, remedy="pass the value in use")
    beta = checks.real(
        "meta_momentum",
        meta_momentum,
        low=0.0,
        high=1.0,
        high_open=True,
        remedy="the paper uses 0.9",
    )
    step_size = checks.real("meta_lr", meta_lr, low=0.0, remedy="the paper uses 0.5")
    decay = checks.real("base_decay", base_decay, high=1.0, high_open=True, remedy="0 is none")
    velocity = beta * velocity + (1.0 - beta) * delta
    return velocity, base * (1.0 - decay) + step_size * velocity


def base_decay(
    div_factor: float,
    final_div_factor: float,
    num_cycles: float,
    literal: bool = False,
    *,
    start_ratio: float = 1.0,
) -> float:
    r"""Eq. 8, corrected: $\gamma = 1 - \exp(-\log(s f_{div} f_{final}) / K)$.

    K cycles of this decay take a base value from $s \cdot$ max_lr exactly to OneCycleLR's
    floor, max_lr / (f_div * f_final).

    Departure from the paper: it prints $\gamma = 1 - \exp(-\log(f_{div} / f_{final}) / K)$,
    which at PyTorch's defaults (25 and 1e4) is negative and grows the base 400-fold. The floor is
    max_lr divided by the *product* of the two factors, and the decay starts wherever the schedule
    stands when the controller takes over. ``literal=True`` gives the printed formula, so that the
    paper's setting can be rerun.

    Args:
        div_factor: OneCycleLR's max_lr / initial_lr, above 0.
        final_div_factor: OneCycleLR's initial_lr / min_lr, above 0.
        num_cycles: K = (S - S_warm) / T, above 0; need not be whole.
        literal: use the printed formula.
        start_ratio: s, the base value where the decay starts, relative to max_lr.

    >>> round(1e-3 * (1 - base_decay(25.0, 1e4, 8)) ** 8, 12)
    4e-09
    >>> base_decay(25.0, 1e4, 8, literal=True) < 0
    True
    """
    div_factor = checks.real(
        "div_factor", div_factor, low=0.0, low_open=True, remedy="PyTorch's default is 25"
    )
    final_div_factor = checks.real(
        "final_div_factor", final_div_factor, low=0.0, low_open=True, remedy="its default is 1e4"
    )
    num_cycles = checks.real(
        "num_cycles", num_cycles, low=0.0, low_open=True, remedy="count the converges of the run"
    )
    start_ratio = checks.real(
        "start_ratio", start_ratio, low=0.0, low_open=True, remedy="1 starts at the peak"
    )
    checks.boolean("literal", literal)
    printed = div_factor / final_div_factor
    ratio = printed if literal else start_ratio * div_factor * final_div_factor
    try:
        kept = math.exp(-math.log(ratio) / num_cycles)
    except (OverflowError, ValueError):
        kept = math.inf
    if not 0.0 < kept < math.inf:
        raise InvalidValueError(
            f"num_cycles must leave each cycle a decay that a float can hold, got {num_cycles:g} "
            f"for a factor of {ratio:g} in all; spread it over more cycles"
        )
    return 1.0 - kept


def certainty(significance: float, *, doubt: float) -> float:
    r"""How far the sign of a slope is believed: $z^4 / (z^4 + z_0^4)$, from 0 to 1.

    Half at z = z_0, next to nothing for what noise alone often shows: with z_0 = 2.7, z = 1 counts
    for 2 %. NaN counts for 0.

    Args:
        significance: z, the slope over its standard error; infinite where that is 0.
        doubt: z_0, at least 0.

    >>> certainty(2.0, doubt=2.0), certainty(-math.inf, doubt=2.0)
    (0.5, 1.0)
    """
    doubt = checks.real("doubt", doubt, low=0.0, remedy="the significance that counts for half")
    if math.isnan(significance) or significance == 0.0:
        return 0.0
    ratio = doubt / significance  # so that no power is too large or zero
    square = ratio * ratio
    return 1.0 / (1.0 + square * square)


def significance_step(
    imbalance: float, significance: float, *, stride: float, doubt: float
) -> float:
    r"""The change of a log value: $-\kappa \, r \, \frac{z^4}{z^4 + z_0^4}$.

    As large as the slope is one-sided, and believed as far as it is certain: at most ``stride``,
    half of that at z = z_0, nothing for pure noise on average. NaN changes nothing.

    Args:
        imbalance: r, the slope over the sum of the magnitudes of its parts, from -1 (a higher value
            is better) to 1.
        significance: z, the slope over its standard error.
        stride: kappa, at least 0.
        doubt: z_0, at least 0.

    >>> significance_step(-1.0, -math.inf, stride=0.5, doubt=1.0)
    0.5
    >>> significance_step(1.0, 1.0, stride=0.5, doubt=1.0)
    -0.25
    """
    stride = checks.real("stride", stride, low=0.0, remedy="the largest change of a log value")
    believed = certainty(significance, doubt=doubt)
    if believed == 0.0 or math.isnan(imbalance):
        return 0.0
    return -stride * max(-1.0, min(1.0, imbalance)) * believed
