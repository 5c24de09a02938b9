"""What every controller does: turn a cycle's measurement into the next base value."""

from __future__ import annotations

import abc

import torch

from hdet import checks


class AbstractController(abc.ABC):
    """Moves the base value of one hyperparameter at each converge from ``start_step`` on.

    A controller is an immutable setting. What evolves is a state of plain floats, by name, that is
    passed in and returned; the `Ensemble` keeps one for each hyperparameter. All inputs are
    gathered from all replicas, so all replicas compute the same state without a message.
    """

    def __repr__(self) -> str:
        return checks.describe(self)

    @property
    @abc.abstractmethod
    def start_step(self) -> int | None:
        """First step whose base value is the controller's; None leaves the schedule in charge."""

    @abc.abstractmethod
    def init(self) -> dict[str, float]:
        """The state before the first update."""

    @abc.abstractmethod
    def update(
        self,
        state: dict[str, float],
        base: float,
        values_R: torch.Tensor,
        losses_R: torch.Tensor,
    ) -> tuple[dict[str, float], float]:
        """Return the new state and base value.

        Args:
            state: from `init` or the last `update`.
            base: the base value of the cycle that ended.
            values_R: the value of each replica that counts (float64); may be empty.
            losses_R: what the signal measured for each of them, finite.
        """
