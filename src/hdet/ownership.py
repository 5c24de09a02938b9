"""Who steers an optimiser, and references that keep nobody alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

_STEERED_BY: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[Any]] = (
    weakref.WeakKeyDictionary()
)


def steer(optimizer: torch.optim.Optimizer, owner: object) -> None:
    """Note that ``owner`` has written the values that stand in the optimiser now.

    Whoever writes is in charge from then on, and nobody else: a scheduler that replaces another in
    a notebook, or the next child of a `SequentialLR`. Equal values alone would not tell them apart.
    """
    if steered_by(optimizer) is not owner:
        _STEERED_BY[optimizer] = weakref.ref(owner)


def steered_by(optimizer: torch.optim.Optimizer) -> object | None:
    """Who wrote last, if it was one of ours and is still there."""
    reference = _STEERED_BY.get(optimizer)
    return None if reference is None else reference()


class WeakMethod:
    """A bound method that dies with its owner, and then returns None.

    Optimiser hooks and whatever an ensemble hands down are held so: a scheduler that is deleted or
    replaced is gone at once, without a garbage collection.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._reference = weakref.WeakMethod(method)

    def __call__(self, *args: Any) -> Any:
        """Call the method, if its owner is still there."""
        method = self._reference()
        return None if method is None else method(*args)

    def __getstate__(self) -> dict[str, Any]:
        return {"method": self._reference()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reference = weakref.WeakMethod(state["method"])
