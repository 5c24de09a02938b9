"""Taking in losses: each step's once, and only what can be read."""

from __future__ import annotations

from typing import Any

import torch

from hdet import checks
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
            self.read(loss)
        elif loss is not None:
            self.take(loss, step)
        elif self._is_needed() and self._last_step != step:
            raise UsageError(
                "step() needs the training loss, because the controller weighs the replicas by it "
                f"({self._needed_by!r}), got none; call step(loss), or ensemble.observe(loss) "
                "before a bare step()"
            )

    def read(self, loss: Losses | None) -> None:
        """Raise where a loss is none, and leave it at that."""
        if loss is not None:
            read_losses(loss, self._num_local)

    def allow_again(self, step: int) -> None:
        """Step ``step`` was not made: the next one has the same number, and a loss of its own."""
        if self._last_step == step:
            self._last_step -= 1

    def _is_needed(self) -> bool:
        return self._needed_by is not None and self.signal.needs_loss

    def measure(self, device: torch.device) -> torch.Tensor:
        """What the signal says of the cycle so far, ``[L]`` on ``device``."""
        return self.signal.measure(self._num_local, device)

    def statistics(self) -> torch.Tensor:
        """What else the signal says of it, ``[K]``."""
        return self.signal.statistics()

    def begin_cycle(self, num_steps: int) -> None:
        """The coming cycle, of ``num_steps`` steps, is measured afresh; 0 if it is not measured."""
        self.signal.reset(num_steps)
        self.num_observed = 0

    def reset(self, num_steps: int) -> None:
        """Forget everything: the run goes on at another step."""
        self.begin_cycle(num_steps)
        self._last_step = -1

    # ------------------------------------------------------------------ the cycle so far

    def state_dict(self) -> dict[str, Any]:
        """What was taken in since the cycle began, of plain types."""
        return {
            "num_observed": self.num_observed,
            "last_step": self._last_step,
            "signal": self.signal.progress(),
        }

    def common_state(self) -> dict[str, Any]:
        """What processes that stand at one point have all seen alike."""
        return self._common(self.state_dict())

    def has_own(self) -> bool:
        """Whether the cycle so far holds something that other processes do not know."""
        needed = self._needed_by is not None and self.signal.needs_loss
        return needed and self.num_observed > 0

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise, without changing anything, if `load_state_dict` could not restore ``state``."""
        for key, minimum in (("num_observed", 0), ("last_step", -1)):
            name = f"state['cycle_so_far']: {key}"
            checks.integer(name, state.get(key), minimum=minimum, remedy=checks.SAVED)
        self._check_signal(state)

    def check_common_state(self, state: dict[str, Any]) -> None:
        """As `check_state`, of what `common_state` holds."""
        if self.signal.common:
            self._check_signal(self._common(state))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as if the cycle had never been interrupted."""
        self.num_observed, self._last_step = int(state["num_observed"]), int(state["last_step"])
        self.signal.load_progress(state["signal"])

    def load_common_state(self, state: dict[str, Any]) -> None:
        """Go on with what all processes saw alike; each starts its own part again."""
        if self.signal.common:
            self.signal.load_progress(self._common(state)["signal"])

    def _common(self, state: dict[str, Any]) -> dict[str, Any]:
        own = state.get("signal")
        known = own if isinstance(own, dict) else {}
        return {"signal": {key: known[key] for key in self.signal.common if key in known}}

    def _check_signal(self, state: dict[str, Any]) -> None:
        name = "state['cycle_so_far']: signal"
        checks.instance(name, state.get("signal"), dict, remedy=checks.SAVED)
        self.signal.check_progress(state["signal"], self._num_local)
