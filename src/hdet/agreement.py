"""Replicas that must agree: name a difference before it becomes a hang or a wrong mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from hdet.errors import ReplicaMismatchError


def check_settings(everyone: Sequence[Mapping[str, Any]]) -> None:
    """Compare the settings of all replicas key by key; the keys of replica 0 lead."""
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
