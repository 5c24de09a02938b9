"""No control: the base values follow the schedule."""

from __future__ import annotations

import torch

from hdet.controllers.base import AbstractController


class FixedController(AbstractController):
    """Leaves every base value to the schedule; the spread and the averaging still act."""

    @property
    def start_step(self) -> None:
        """Never."""
        return

    def init(self) -> dict[str, float]:
        """No state."""
        return {}

    def update(
        self,
        state: dict[str, float],
        base: float,
        values_R: torch.Tensor,
        losses_R: torch.Tensor,
    ) -> tuple[dict[str, float], float]:
        """The same again."""
        return state, base
