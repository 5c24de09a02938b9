"""``optimizer.step(closure)``: the gradients have to be there before the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _Evaluated:
    """A closure whose first answer is known; from the second call on it is asked again."""

    def __init__(self, closure: Callable[[], Any]) -> None:
        self._closure = closure
        with torch.enable_grad():
            self._answers = [closure()]

    def __call__(self) -> Any:
        return self._answers.pop() if self._answers else self._closure()


def evaluate_first(
    _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """A pre-step hook: evaluate the closure now, where the optimiser is about to do just that.

    Hooks that follow see the gradients of this step rather than those of the last. The point is the
    same and so is the number of evaluations, so the step is the same to the last bit.
    """
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _Evaluated(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):  # the optimiser itself is the first
        return (args[0], _Evaluated(args[1]), *args[2:]), kwargs
    return None
