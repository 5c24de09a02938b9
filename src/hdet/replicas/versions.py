"""Telling which tensors somebody else has written to, without reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Versions:
    """Remembers tensors as they stand; a later write is told by torch's version counter.

    The copy of a tensor counts from anew. So a copy of this, pickled or deep, is made of the answer
    and not of the counts: else every tensor of the copy would look written to.
    """

    def __init__(self) -> None:
        self._members: list[torch.Tensor] = []
        self._counts: list[int] = []

    def note(self, members: Sequence[torch.Tensor]) -> None:
        """What stands in these tensors now is known."""
        self._members = list(members)
        self._counts = [member._version for member in members]

    def changed(self) -> list[bool]:
        """Which of them were written to since, in order."""
        pairs = zip(self._members, self._counts, strict=True)
        return [member._version != count for member, count in pairs]

    def __getstate__(self) -> dict[str, Any]:
        return {"members": self._members, "changed": self.changed()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.note(state["members"])
        for index, changed in enumerate(state["changed"]):
            if changed:
                self._counts[index] = -1
