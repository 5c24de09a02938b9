"""Whether the optimiser has made an update: a GradScaler skips those whose gradients overflow."""

from __future__ import annotations

from typing import Any

import torch

from hdet.ownership import WeakMethod


class Updates:
    """Counts the calls of ``optimizer.step``, from its own hook.

    A fused optimiser that unscales its gradients itself is called all the same, and decides on the
    device: such a step counts.

    Args:
        optimizer: whose steps count.
        gradients: with ``"local"`` ones a process may be alone with a skipped step, and so all
            count all steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, gradients: str) -> None:
        self._optimizer = optimizer
        self._are_shared = gradients == "shared"
        self._made = self._taken = 0
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
        return is_skipped and self._are_shared

    def _after_step(self, *_: Any) -> None:
        self._made += 1
