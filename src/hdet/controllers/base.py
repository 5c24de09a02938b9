"""What every controller does: turn a cycle's measurement into the next base value."""

from __future__ import annotations

import abc
import math
from typing import NamedTuple

import torch

from hdet import checks, functional
from hdet.signals.base import Trend


class Evidence(NamedTuple):
    """What a cycle measured about one hyperparameter, gathered, the same on every replica."""

    step: int
    """Optimiser steps taken when the cycle ended."""
    values_R: torch.Tensor
    """The value of each replica that counts (float64); may be empty."""
    losses_R: torch.Tensor
    """The mean training loss of each of them, finite."""
    trend: Trend | None = None
    """What the signal says beyond losses; None where it says nothing."""

    @property
    def significance(self) -> float:
        """Slope over standard error, signed: below 0 a higher value is better. 0 where unknown.

        From the trend, else from a regression of the losses on the values.
        """
        if self.trend is not None:
            slope, stderr = self.trend.slope, self.trend.stderr
        elif len(self.losses_R) > 2 and bool((self.values_R > 0.0).all()):
            slope, stderr = functional.regression_slope(self.values_R, self.losses_R)
        else:
            return 0.0
        if not math.isfinite(slope) or not math.isfinite(stderr) or slope == 0.0:
            return 0.0
        return slope / stderr if stderr > 0.0 else math.copysign(math.inf, slope)

    @property
    def imbalance(self) -> float:
        """The trend's slope over the sum of the magnitudes of its parts; 0 where unknown."""
        if self.trend is None:
            return 0.0
        slope, scale = self.trend.slope, self.trend.scale
        if not math.isfinite(slope) or not math.isfinite(scale) or scale <= 0.0:
            return 0.0
        return max(-1.0, min(1.0, slope / scale))


class AbstractController(abc.ABC):
    """Moves the base value of one hyperparameter at each converge from ``start_step`` on.

    A controller is an immutable setting. What evolves is a state of plain floats, by name, that is
    passed in and returned; the `Ensemble` keeps one for each hyperparameter. All inputs are
    gathered from all replicas, so all replicas compute the same state without a message.
    """

    def __repr__(self) -> str:
        return checks.describe(self)

    def roll_back(
        self, state: dict[str, float], base: float, *, lower: float, step: int
    ) -> tuple[dict[str, float], float]:
        """The state and the base value after a return to an earlier point: afresh, and lower.

        Args:
            state: as `init` or the last `update` returned it.
            base: the value in use.
            lower: the guard's factor, in (0, 1).
            step: optimiser steps taken.
        """
        del state, step
        return self.init(), base * lower

    def starts_over(self, state: dict[str, float]) -> bool:
        """Whether the last `update` asks for a return to the last good point, if there is a guard.

        Not as a rule.
        """
        del state
        return False

    @property
    @abc.abstractmethod
    def start_step(self) -> int | None:
        """First step whose base value is the controller's; None leaves the schedule in charge."""

    @property
    def start_value(self) -> float | None:
        """Where control starts; None is the value that the schedule has when it takes over.

        With a value, the controller is *relative*: what it moves is a factor on the schedule's
        value, which goes on shaping it.
        """
        return None

    @property
    def needs_trend(self) -> bool:
        """Whether it needs a signal that tells a slope, not only the replicas' losses."""
        return False

    @abc.abstractmethod
    def init(self) -> dict[str, float]:
        """The state before the first update."""

    @abc.abstractmethod
    def update(
        self, state: dict[str, float], base: float, evidence: Evidence
    ) -> tuple[dict[str, float], float]:
        """Return the new state and base value.

        Args:
            state: from `init` or the last `update`.
            base: the base value of the cycle that ended.
            evidence: what that cycle measured.
        """

    def next_cycle_steps(self, state: dict[str, float], step: int) -> int | None:
        """Length of the cycle that starts at ``step``; None leaves it to the ensemble's T."""
        del state, step
        return None
