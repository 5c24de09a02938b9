"""The paper's signal: each replica's mean training loss over the cycle (Eq. 4's L_r)."""

from __future__ import annotations

from typing import Any

import torch

from hdet import tensors
from hdet.signals.base import AbstractSignal


class TrainingLoss(AbstractSignal):
    """L_r, the mean of the losses given to ``step`` since the last converge.

    The sum stays on the losses' device, in float64 where the device has it: over a thousand steps a
    float32 sum loses the differences of 1e-5 and less that the controller is asked to tell apart.
    """

    def __init__(self) -> None:
        self._sum_L: torch.Tensor | None = None
        self._num_steps = 0

    @property
    def needs_loss(self) -> bool:
        """The training loss is all there is to it."""
        return True

    def observe(self, losses_L: torch.Tensor) -> None:
        """Add one step's losses to the sum."""
        if self._sum_L is None or self._sum_L.device != losses_L.device:
            dtype = tensors.widest(losses_L.device)
            carried = self._sum_L
            self._sum_L = torch.zeros_like(losses_L, dtype=dtype)
            if carried is not None:
                self._sum_L += carried.to(self._sum_L)
        self._sum_L += losses_L
        self._num_steps += 1

    def measure(self, num_local: int, device: torch.device) -> torch.Tensor:
        """The mean loss of each local replica."""
        if self._sum_L is None or self._num_steps == 0:
            dtype = tensors.widest(device)
            return torch.full((num_local,), float("nan"), device=device, dtype=dtype)
        return (self._sum_L / self._num_steps).to(device)

    def reset(self, num_steps: int) -> None:
        """Start the next cycle's sum in the same memory."""
        del num_steps
        if self._sum_L is not None:
            self._sum_L.zero_()
        self._num_steps = 0

    def local_state_dict(self) -> dict[str, Any]:
        """The sum so far."""
        return {"sum": self._sum_L, "num_steps": self._num_steps}

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        """Go on adding to it, wherever the losses will be."""
        self._sum_L, self._num_steps = state["sum"], int(state["num_steps"])
