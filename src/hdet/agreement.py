"""Replicas that must agree: name a difference before it becomes a hang or a wrong mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch

from hdet import optimizers
from hdet.errors import ReplicaMismatchError
from hdet.replicas import AbstractReplicas


class Agreement:
    """Compares what an ensemble was built with, once, ahead of its first other message.

    Args:
        replicas: who must agree.
        optimizer: whose settings and parameters must be the same.
        settings: what else must be, by the name it has in a message.
    """

    def __init__(
        self,
        replicas: AbstractReplicas,
        optimizer: torch.optim.Optimizer,
        settings: Mapping[str, Any],
    ) -> None:
        self._replicas = replicas
        self._optimizer = optimizer
        self._settings = settings
        self.settled = replicas.num_local == replicas.num_replicas

    def settle(self, *, is_on: bool, step: int, base: Sequence[float]) -> None:
        """Compare; a difference found here is neither a hang nor a wrong mean.

        Args:
            is_on: whether hdet does anything. If not, ranks may hold different parts of a model.
            step: steps taken so far.
            base: the base values.
        """
        self.settled = True
        own: dict[str, Any] = {"whether hdet is switched on": is_on}
        if is_on:
            own |= {
                "base values": list(base),
                **self._settings,
                "the number of steps taken": step,
                "optimizer": type(self._optimizer).__name__,
                "optimizer settings": optimizers.settings(self._optimizer),
                "parameters": [
                    f"{tuple(p.shape)} {p.dtype}" for p in optimizers.parameters(self._optimizer)
                ],
            }
        everyone = self._replicas.gather_objects(own)
        for key in everyone[0]:
            check_same(key, [settings.get(key) for settings in everyone])


def check_same(key: str, values: Sequence[Any]) -> None:
    """Raise if one replica's value differs from replica 0's; lists are compared entry by entry."""
    first = values[0]
    odd = [replica for replica, value in enumerate(values) if value != first]
    if not odd:
        return
    other = values[odd[0]]
    if isinstance(first, list) and isinstance(other, list):
        pairs = zip_longest(first, other, fillvalue="nothing")
        index, (first, other) = next(
            (index, pair) for index, pair in enumerate(pairs) if pair[0] != pair[1]
        )
        key = f"{key}[{index}]"
    who = f"replica{'s' if len(odd) > 1 else ''} {', '.join(map(str, odd))}"
    raise ReplicaMismatchError(
        f"replicas must agree on {key}, got {first!r} on replica 0 and {other!r} on {who}; "
        "run the same script with the same arguments on every rank"
    )


def settings(ensemble: Any, schedule: list[str]) -> dict[str, Any]:
    """What replicas of an ensemble must agree on, by the name it has in a message."""
    return {
        "hyperparameters": [repr(h) for h in ensemble.hyperparameters],
        "controller": repr(ensemble.controller),
        "signal": type(ensemble.signal).__name__,
        "num_replicas": ensemble.num_replicas,
        "cycle_steps": ensemble.cycle_steps,
        "total_steps": ensemble.total_steps,
        "seed": ensemble.seed,
        "gradients": ensemble.replicas.gradients,
        "guard": repr(ensemble.guard),
        "schedule": schedule,
    }
