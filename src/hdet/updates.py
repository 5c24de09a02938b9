"""Whether the optimiser has made an update: a GradScaler skips those whose gradients overflow."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from hdet.errors import warn
from hdet.ownership import WeakMethod
from hdet.signals import Intake, Losses

_MANY = 8
"""Skipped steps that a GradScaler hardly ever has while it looks for its scale."""


class Updates:
    """Counts the calls of ``optimizer.step``, from its own hook.

    A fused optimiser that unscales its gradients itself is called all the same, and decides on the
    device: such a step counts.

    Args:
        optimizer: whose steps count.
        gradients: with ``"local"`` ones a process may be alone with a skipped step, and so all
            count all steps.
        intake: where losses go, of which that of a skipped step is only read.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, gradients: str, intake: Intake) -> None:
        self._optimizer = optimizer
        self._intake = intake
        self._are_shared = gradients == "shared"
        self._made = self._taken = self._num_idle = 0
        self._warned = False
        self._follow()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)  # a pickled optimiser comes back without its hooks
        self._follow()

    def was_skipped(self, loss: Losses | None, step: int) -> bool:
        """Whether there was none since the last call, though nearly always there is.

        Believed only of an optimiser that makes twice as many updates as it leaves out: schedules
        are also stepped without one, to be looked at, or for each micro-batch, by mistake.

        Args:
            loss: what ``step`` was given.
            step: the number that it would have.
        """
        if not 0 < self._made == self._taken:
            self._taken = self._made
            return False
        self._intake.read(loss)
        self._num_idle += 1
        if not self._warned and self._num_idle >= max(_MANY, self._made):
            self._warned = True
            warn(
                f"scheduler.step() was called {self._made + self._num_idle} times for "
                f"{self._made} calls of optimizer.step(): the rate is steered by updates that did "
                "not happen; call both once for each update, also where gradients are accumulated"
            )
        if not self._are_shared or self._made < 2 * self._num_idle:
            return False
        self._intake.allow_again(step)
        return True

    def note(self, *_: Any) -> None:
        """An update was made: the optimiser's hook."""
        self._made += 1

    def _follow(self) -> None:
        handle = self._optimizer.register_step_post_hook(WeakMethod(self.note))
        weakref.finalize(self, handle.remove)
