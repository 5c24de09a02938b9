"""What every signal does: collect on the device, say its part once a cycle."""

from __future__ import annotations

import abc

import torch


class AbstractSignal(abc.ABC):
    """Collects evidence during a cycle and reports one row for each local replica at its end.

    Nothing here may wait for the device between two converges.
    """

    @property
    @abc.abstractmethod
    def needs_loss(self) -> bool:
        """Whether `observe` must be called at every step."""

    @abc.abstractmethod
    def observe(self, losses_L: torch.Tensor) -> None:
        """Take in one step's losses ``[L]``, one for each replica in this process."""

    @abc.abstractmethod
    def measure(self, num_local: int, device: torch.device) -> torch.Tensor:
        """This process's part ``[L]`` on ``device``; NaN where nothing was measured."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget the cycle that ended."""
