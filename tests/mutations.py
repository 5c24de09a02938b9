"""Ways to damage a saved state, inside its structure and in the bytes of its file."""

from __future__ import annotations

import copy
import io
import os
import random
from collections.abc import Callable
from typing import Any

import torch

NAN, INF = float("nan"), float("inf")
WRONG: list[Callable[[], Any]] = [
    lambda: None,
    lambda: True,
    lambda: "text",
    lambda: b"bytes",
    lambda: -1,
    lambda: 0,
    lambda: 7,
    lambda: 10**30,
    lambda: -(10**30),
    lambda: 2.5,
    lambda: -0.5,
    lambda: NAN,
    lambda: INF,
    lambda: 1e308,
    lambda: 1j,
    list,
    dict,
    lambda: (1, 2),
    lambda: [None],
    lambda: [[]],
    lambda: {"a": 1},
    lambda: {1: {}},
    lambda: {1},
    lambda: torch.tensor(NAN),
    lambda: torch.ones(2, 3),
    lambda: torch.ones(0),
    lambda: torch.ones(2, dtype=torch.int64),
    lambda: torch.ones(2, 2).to_sparse(),
    lambda: torch.ones(3, device="meta"),
    lambda: torch.ones(2, dtype=torch.complex64),
]
Place = tuple[Any, Any]
"""A container and a key of it."""


def places(value: Any) -> list[Place]:
    """Everywhere in nested dicts and lists where something stands."""
    found: list[Place] = []
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, own in list(pairs):
            found.append((value, key))
            found += places(own)
    return found


def _drop(chance: random.Random, container: Any, key: Any, _: Any) -> None:
    del container[key]


def _replace(chance: random.Random, container: Any, key: Any, _: Any) -> None:
    container[key] = chance.choice(WRONG)()


def _swap(chance: random.Random, container: Any, key: Any, state: Any) -> None:
    other, name = chance.choice(places(state))
    container[key], other[name] = other[name], copy.deepcopy(container[key])


def _add(chance: random.Random, container: Any, key: Any, _: Any) -> None:
    value = chance.choice(WRONG)()
    if isinstance(container, list):
        container.append(value)
    else:
        container[chance.choice(["step", "optimizer", "get_lr", "x", 3, None, "__class__"])] = value


def _bend(chance: random.Random, container: Any, key: Any, _: Any) -> None:
    own = container[key]
    if isinstance(own, torch.Tensor) and own.layout == torch.strided:
        bent = [own[..., None], own.flatten()[:1], own.int(), own * NAN, own.to(torch.float16)]
        container[key] = chance.choice(bent)
    elif isinstance(own, list):
        container[key] = chance.choice([own[1:], own + own, own[::-1], tuple(own)])
    elif isinstance(own, dict):
        container[key] = chance.choice([list(own), list(own.values()), {**own, "extra": None}])
    elif isinstance(own, bool):
        container[key] = chance.choice([int(own), str(own), not own])
    elif isinstance(own, int | float):
        container[key] = chance.choice([-own, own + 1, own * 1e9, str(own), [own], own + 0.5])


CHANGES = [_drop, _replace, _replace, _swap, _add, _bend, _bend]


def mutated(chance: random.Random, state: dict[str, Any]) -> dict[str, Any]:
    """A copy with one to three things wrong."""
    state = copy.deepcopy(state)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        found = places(state)
        if found:
            container, key = chance.choice(found)
            chance.choice(CHANGES)(chance, container, key, state)
    return state


def as_file(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def mutated_file(chance: random.Random, data: bytes) -> bytes:
    """Bytes flipped, zeroed, cut off or put in."""
    kind = chance.randrange(5)
    if kind == 0:
        return data[: chance.randrange(len(data))]
    if kind == 1:
        start = chance.randrange(len(data))
        return data[:start] + data[start + chance.randrange(1, 200) :]
    found = bytearray(data)
    if kind == 2:
        start = chance.randrange(len(found))
        found[start:start] = chance.randbytes(chance.randrange(1, 50))
    elif kind == 3:
        start = chance.randrange(len(found))
        found[start : start + 64] = bytes(64)
    else:
        for _ in range(chance.choice([1, 2, 8, 64])):
            found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: str, call: str) -> None:
        self.mark, self.call = mark, call

    def __reduce__(self) -> Any:
        command = f"echo done > {self.mark}"
        calls: dict[str, Any] = {
            "system": (os.system, (command,)),
            "eval": (eval, (f"__import__('os').system({command!r})",)),
            "exec": (exec, (f"import os; os.system({command!r})",)),
            "open": (open, (self.mark, "w")),
        }
        return calls[self.call]


HOSTILE = ["system", "eval", "exec", "open"]
