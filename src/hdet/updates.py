"""Whether the optimiser has made an update: a GradScaler skips those whose gradients overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hdet.errors import warn
from hdet.ownership import WeakMethod

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
        on_skip: called where one was skipped.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, gradients: str, on_skip: Callable[[], None]
    ) -> None:
        self._optimizer = optimizer
        self._on_skip = on_skip
        self._are_shared = gradients == "shared"
        self._made = self._taken = self._num_skipped = 0
        self._warned = False
        optimizer.register_step_post_hook(WeakMethod(self._after_step))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)  # a pickled optimiser comes back without its hooks
        self._optimizer.register_step_post_hook(WeakMethod(self._after_step))

    def was_skipped(self) -> bool:
        """Whether there was none since the last call; never so before the first one at all.

        Schedules are also stepped without an optimiser, to be looked at.
        """
        is_skipped = 0 < self._made == self._taken
        self._taken = self._made
        self._num_skipped += is_skipped
        if not self._warned and self._num_skipped >= max(_MANY, self._made):
            self._warned = True
            warn(
                f"scheduler.step() was called {self._made + self._num_skipped} times for "
                f"{self._made} calls of optimizer.step(): what is more does not count, as for a "
                "GradScaler that skips one; call both once for each update, also where gradients "
                "are accumulated, and let total_steps count those"
            )
        if not is_skipped or not self._are_shared:
            return False
        self._on_skip()
        return True

    def _after_step(self, *_: Any) -> None:
        self._made += 1
