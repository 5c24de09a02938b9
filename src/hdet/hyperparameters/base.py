"""What every hyperparameter is: a name, a spread, bounds, a place to read and write."""

from __future__ import annotations

import abc
import math
import numbers
from typing import Any

import torch

from hdet import checks
from hdet.errors import InvalidTypeError, InvalidValueError


class AbstractHyperparameter(abc.ABC):
    """A scalar that each replica may set to another value.

    Args:
        name: unique within an ensemble; keys the state and the records.
        spread_ratio: alpha of Eq. 1, in [0, 1).
        bounds: the closed interval that a controller keeps the base value in.
    """

    def __init__(self, name: str, *, spread_ratio: float, bounds: Any) -> None:
        self.name = name
        self.spread_ratio = checks.real(
            "spread_ratio",
            spread_ratio,
            low=0.0,
            high=1.0,
            high_open=True,
            remedy="from 1 on, the lowest replica's value would be zero or negative",
        )
        remedy = "pass for example bounds=(1e-6, 1.0)"
        if not isinstance(bounds, tuple | list) or len(bounds) != 2:
            raise InvalidValueError(f"bounds must be a pair (low, high), got {bounds!r}; {remedy}")
        if not all(isinstance(bound, numbers.Real) for bound in bounds):
            raise InvalidTypeError(f"bounds must be two numbers, got {bounds!r}; {remedy}")
        low, high = (float(bound) for bound in bounds)
        if not low < high:
            remedy = "a value that is to stay needs no controller" if low == high else remedy
            raise InvalidValueError(f"bounds must have low < high, got {bounds!r}; {remedy}")
        self.bounds = (low, high)

    def __repr__(self) -> str:
        return checks.describe(self)

    @property
    def rate_group(self) -> int | None:
        """The parameter group whose learning rate this is; None for anything else."""
        return None

    @abc.abstractmethod
    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise now, not during training, if the value cannot be read and written."""

    def check_value(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise if the value that an ensemble would start from is not a number within the bounds.

        Apart from `check`, because a scheduler writes its own value over whatever it finds.
        """
        low, high = self.bounds
        remedy = f"build the optimiser with such a value, or widen the bounds of {self.name}"
        found = self.read(optimizer)
        value = float(found)
        # A float32 tensor that was filled with a bound may lie an ulp beyond it.
        if isinstance(found, torch.Tensor):
            value = next((b for b in self.bounds if math.isclose(value, b, rel_tol=1e-6)), value)
        checks.real(f"{self.name} in the optimizer", value, low=low, high=high, remedy=remedy)

    @abc.abstractmethod
    def read(self, optimizer: torch.optim.Optimizer) -> Any:
        """The current value, a float or a tensor."""

    @abc.abstractmethod
    def write(self, optimizer: torch.optim.Optimizer, value: Any) -> None:
        """Set the value; a tensor is filled in place, so that captured graphs see it."""
