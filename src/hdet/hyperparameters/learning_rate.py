"""The learning rate of one parameter group."""

from __future__ import annotations

import math
from typing import Any

import torch

from hdet import checks
from hdet.errors import InvalidTypeError, InvalidValueError
from hdet.hyperparameters.base import AbstractHyperparameter


class LearningRate(AbstractHyperparameter):
    """``optimizer.param_groups[group]["lr"]``.

    Args:
        group: index of the parameter group.
        spread_ratio: alpha of Eq. 1, in [0, 1); the paper uses 1/9.
        bounds: the interval a controller keeps the base rate in.

    >>> LearningRate(1, spread_ratio=0.1).name
    'lr/1'
    """

    def __init__(
        self,
        group: int = 0,
        *,
        spread_ratio: float = 0.0,
        bounds: tuple[float, float] = (0.0, math.inf),
    ) -> None:
        self.group = checks.integer(
            "group", group, minimum=0, remedy="count the parameter groups from 0"
        )
        super().__init__(f"lr/{self.group}", spread_ratio=spread_ratio, bounds=bounds)
        if self.bounds[0] < 0.0:
            raise InvalidValueError(
                f"bounds of a learning rate must not be negative, got {self.bounds}; "
                "pass for example bounds=(1e-6, 1.0)"
            )

    @property
    def rate_group(self) -> int:
        """The group."""
        return self.group

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise if the group is missing or its rate cannot hold a real number."""
        count = len(optimizer.param_groups)
        if self.group >= count:
            raise InvalidValueError(
                f"group must be below the optimiser's {count} parameter groups, got {self.group}; "
                "count them from 0"
            )
        rate = optimizer.param_groups[self.group].get("lr")
        is_number = isinstance(rate, float | int) and not isinstance(rate, bool)
        is_tensor = (
            isinstance(rate, torch.Tensor) and rate.numel() == 1 and rate.is_floating_point()
        )
        if not is_number and not is_tensor:
            shown = repr(rate).replace("\n", " ")
            raise InvalidTypeError(
                f"the lr of parameter group {self.group} must be a float or a one-element "
                f"floating-point tensor, got {shown} ({type(rate).__name__}); build the optimiser "
                "with a float rate"
            )

    def read(self, optimizer: torch.optim.Optimizer) -> Any:
        """The group's rate."""
        return optimizer.param_groups[self.group]["lr"]

    def write(self, optimizer: torch.optim.Optimizer, value: Any) -> None:
        """Set the group's rate."""
        group = optimizer.param_groups[self.group]
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = float(value)
