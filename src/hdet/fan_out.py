"""The loop over virtual replicas: each with its parameters in place and its part of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hdet.errors import UsageError
from hdet.replicas import AbstractReplicas
from hdet.replicas.split import split


class FanOut:
    """Shows one replica after the other, and knows whether one is shown now.

    Args:
        replicas: whose parameters stand in the module meanwhile.
    """

    def __init__(self, replicas: AbstractReplicas) -> None:
        self._replicas = replicas
        self._is_inside = False

    def over(self, batch: Any) -> Iterator[tuple[int, Any]]:
        """Yield ``(replica, micro_batch)``."""
        count = self._replicas.num_replicas
        parts = [batch] if count == 1 else split(batch, count)
        self._is_inside = True
        try:
            for replica, part in enumerate(parts):
                self._replicas.load(replica)
                yield replica, part
        finally:
            self._is_inside = False
            self._replicas.unload()

    def refuse_inside(self, call: str) -> None:
        """A replica's parameters stand in the module there, and leaving the loop replaces them."""
        if self._is_inside:
            raise UsageError(f"{call} was called inside fan_out(); call it after the loop")
