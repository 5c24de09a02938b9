"""Taking in losses: each step's once, and only what can be read."""

from __future__ import annotations

import torch

from hdet.errors import UsageError
from hdet.signals.base import AbstractSignal
from hdet.signals.losses import Losses, read_losses


class Intake:
    """Hands each step's loss to the signal, and remembers for which steps it had one."""

    def __init__(self, signal: AbstractSignal, num_local: int) -> None:
        self._signal = signal
        self._num_local = num_local
        self._last_step = -1
        self.num_observed = 0

    def take(self, loss: Losses, step: int) -> None:
        """Read the loss of ``step``, which may come once."""
        if self.has(step):
            raise UsageError(
                f"the loss of step {step} was handed over twice; call either step(loss), or "
                "observe(loss) and a bare step()"
            )
        self._signal.observe(read_losses(loss, self._num_local))
        self._last_step = step
        self.num_observed += 1

    def has(self, step: int) -> bool:
        """Whether the loss of ``step`` has come."""
        return self._last_step == step

    def measure(self, device: torch.device) -> torch.Tensor:
        """What the signal says of the cycle so far, ``[L]`` on ``device``."""
        return self._signal.measure(self._num_local, device)

    def end_cycle(self) -> None:
        """The next cycle is measured afresh."""
        self._signal.reset()
        self.num_observed = 0

    def reset(self) -> None:
        """Forget everything: the run goes on at another step."""
        self.end_cycle()
        self._last_step = -1
