"""Taking in losses: each step's once, and only what can be read."""

from __future__ import annotations

from typing import Any

import torch

from hdet.errors import UsageError
from hdet.signals.base import AbstractSignal
from hdet.signals.losses import Losses, read_losses


class Intake:
    """Hands each step's loss to the signal, and counts them.

    Args:
        signal: what they are for.
        num_local: how many losses a step has in this process.
        needed_by: who weighs replicas by the signal; None if nobody.
    """

    def __init__(
        self, signal: AbstractSignal, num_local: int, *, needed_by: object | None = None
    ) -> None:
        self.signal = signal
        self._needed_by = needed_by
        self._num_local = num_local
        self._last_step = -1
        self.num_observed = 0

    def take(self, loss: Losses, step: int) -> None:
        """Read the loss of ``step``, which may come once."""
        if self._last_step == step:
            raise UsageError(
                f"the loss of step {step} was handed over twice; call either step(loss), or "
                "observe(loss) and a bare step()"
            )
        self.signal.observe(read_losses(loss, self._num_local))
        self._last_step = step
        self.num_observed += 1

    def receive(self, loss: Losses | None, step: int, *, is_on: bool) -> None:
        """What ``step(loss)`` was given; switched off, it is still read, as a mistake may be."""
        if not is_on:
            if loss is not None:
                read_losses(loss, self._num_local)
        elif loss is not None:
            self.take(loss, step)
        elif self._is_needed() and self._last_step != step:
            raise UsageError(
                "step() needs the training loss, because the controller weighs the replicas by it "
                f"({self._needed_by!r}), got none; call step(loss), or ensemble.observe(loss) "
                "before a bare step()"
            )

    def allow_again(self) -> None:
        """The step was not made: the next one has the same number, and a loss of its own."""
        self._last_step = -1

    def _is_needed(self) -> bool:
        return self._needed_by is not None and self.signal.needs_loss

    def measure(self, device: torch.device) -> torch.Tensor:
        """What the signal says of the cycle so far, ``[L]`` on ``device``."""
        return self.signal.measure(self._num_local, device)

    def statistics(self) -> torch.Tensor:
        """What else the signal says of it, ``[K]``."""
        return self.signal.statistics()

    def state_dict(self) -> dict[str, Any]:
        """What this process alone knows of the cycle so far."""
        return {
            "num_local": self._num_local,
            "num_observed": self.num_observed,
            "signal": self.signal.local_state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore, if it is of as many replicas as this process has; return whether it is."""
        fits = bool(state["num_local"] == self._num_local)
        if fits:
            self.num_observed = int(state["num_observed"])
            self.signal.load_local_state_dict(state["signal"])
        return fits

    def begin_cycle(self, num_steps: int) -> None:
        """The coming cycle, of ``num_steps`` steps, is measured afresh; 0 if it is not measured."""
        self.signal.reset(num_steps)
        self.num_observed = 0

    def reset(self, num_steps: int) -> None:
        """Forget everything: the run goes on at another step."""
        self.begin_cycle(num_steps)
        self._last_step = -1
