"""What a cycle may have measured, for tests of whoever judges it."""

from __future__ import annotations

import math

import torch

import hdet

NONE = torch.zeros(0, dtype=torch.float64)


def trend_of(slope: float = 0.0, **overrides: float) -> hdet.Trend:
    entries = {"stderr": 0.1, "scale": 1.0, "alignment": -0.5, "moved": 0.1, **overrides}
    return hdet.Trend(slope, **entries)


def told(step: int, trend: hdet.Trend | None) -> hdet.Evidence:
    return hdet.Evidence(step, NONE, NONE, trend)


def compared(values: list[float], losses: list[float]) -> hdet.Evidence:
    tensors = (torch.tensor(own, dtype=torch.float64) for own in (values, losses))
    return hdet.Evidence(0, *tensors)


BALANCING = {**hdet.LongHorizonController().init(), "climbing": 0.0}
NO_EVIDENCE = {"num_told": 0.0, "imbalance": 0.0, "significance": 0.0}


def of(significance: float, *, imbalance: float = 0.5) -> hdet.Trend:
    """A trend of that z, not 0, and, with its sign, that r."""
    slope = math.copysign(1.0, significance)
    return trend_of(slope, stderr=slope / significance, scale=1.0 / imbalance)


UNJUDGED = [
    compared([1.0, 2.0], [1.0, 2.0]),  # every line fits two
    compared([0.0, 0.0, 0.0], [1.0, 2.0, 3.0]),  # a group whose rate is 0
    compared([5.0, 5.0, 5.0], [1.0, 2.0, 3.0]),
    told(0, trend_of(math.nan)),
    told(0, trend_of(1.0, stderr=math.nan)),
    told(0, trend_of(0.0, stderr=0.0)),
]
"""Of no significance, for want of a direction or of an error."""
