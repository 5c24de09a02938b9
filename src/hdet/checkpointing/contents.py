"""What is in a checkpoint: the state of each object once, and what every process has of its own.

========== =====================================================================================
format     ``"hdet.Checkpointer"``
version    of this structure
step       steps done
objects    state of the model, the optimiser, the scheduler and whatever else was named: rank 0's
ranks      for each rank: random states, what it measured in the cycle so far, and the states of
           the objects that every rank has its own of
========== =====================================================================================
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hdet import optimizers
from hdet.checkpointing import randomness
from hdet.cycle import Ensemble
from hdet.errors import InvalidTypeError, InvalidValueError

VERSION = 1
_FORMAT = "hdet.Checkpointer"
_WRAPPERS = {"DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}


def bare(thing: Any) -> Any:
    """The module inside DDP and torch.compile, so that a run may go on with or without them."""
    while (inside := _WRAPPERS.get(type(thing).__name__)) and hasattr(thing, inside):
        thing = getattr(thing, inside)
    return thing


def ensembles_of(scheduler: Any) -> list[Ensemble]:
    """Those that a scheduler of ours, or torch's scheduler of several, steps."""
    if isinstance(scheduler, Ensemble):
        return [scheduler]
    own = getattr(scheduler, "ensemble", None)
    if isinstance(own, Ensemble):
        return [own]
    return [e for child in getattr(scheduler, "_schedulers", ()) for e in ensembles_of(child)]


class Contents:
    """The objects of a run, and how their states go into a checkpoint and back.

    Args:
        objects: by the names under which they are saved.
        per_rank: names of those of which every rank has its own.
        optimizer: whose parameters tell the devices that random numbers are drawn on.
    """

    def __init__(
        self,
        objects: Mapping[str, Any],
        per_rank: Sequence[str],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._objects = {name: bare(own) for name, own in objects.items()}
        self._per_rank = set(per_rank)
        self._devices = list(
            dict.fromkeys(p.device for p in optimizers.parameters(optimizer) if not p.is_cpu)
        )

    def of_rank(self) -> bytes:
        """What only this process has: for most runs some ten kilobytes."""
        own = {
            "random": randomness.capture(self._devices),
            "objects": self._states(self._per_rank),
        }
        buffer = io.BytesIO()
        torch.save(own, buffer)
        return buffer.getvalue()

    def of_run(self, step: int, ranks: Sequence[bytes]) -> dict[str, Any]:
        """The whole checkpoint."""
        return {
            "format": _FORMAT,
            "version": VERSION,
            "step": step,
            "objects": self._states(set(self._objects) - self._per_rank),
            "ranks": [_unpacked(own) for own in ranks],
        }

    def load(self, saved: dict[str, Any], rank: int, num_ranks: int) -> list[str]:
        """Bring everything to where it was; return what had to be made up."""
        names = set(self._objects)
        found = set(saved["objects"]) | {own for rank in saved["ranks"] for own in rank["objects"]}
        if names != found:
            raise InvalidValueError(
                f"the checkpoint must hold {sorted(names)}, got {sorted(found)}; pass the objects "
                "that were passed when it was saved, by the same names"
            )
        for name, own in self._objects.items():
            if name in saved["objects"]:
                _set_state(own, saved["objects"][name])
        return self._load_of_rank(saved["ranks"], rank, num_ranks)

    def _load_of_rank(self, ranks: Sequence[Any], rank: int, num_ranks: int) -> list[str]:
        exact = len(ranks) == num_ranks
        own = ranks[rank] if exact else _common(ranks)
        lost = [name for name in ranks[0]["objects"] if name not in own["objects"]]
        for name, state in own["objects"].items():
            _set_state(self._objects[name], state)
        names = [name for name in ranks[0]["random"] if name not in own["random"]]
        if names:
            key = f"{ranks[0]['random']['torch'].tolist()} {rank} of {num_ranks}"
            randomness.derive(names, key, self._devices)
            lost += [f"random numbers ({name})" for name in names]
        randomness.put_back(own["random"], self._devices)  # last: loading may draw
        return lost

    def _states(self, names: set[str]) -> dict[str, Any]:
        return {name: _state_of(name, self._objects[name]) for name in sorted(names)}


def check_format(saved: Any) -> str | None:
    """What is wrong with the structure, in a few words."""
    head = saved if isinstance(saved, dict) else {}
    if head.get("format") != _FORMAT or not isinstance(head.get("version"), int):
        return "it is no checkpoint of hdet.Checkpointer's"
    if head["version"] > VERSION:
        raise InvalidValueError(
            f"checkpoints must be of version {VERSION} at most, got version {head['version']}; "
            "resume with the release of hdet that wrote it, or a later one"
        )
    ranks, step = head.get("ranks"), head.get("step")
    parts = {"random", "objects"}
    is_whole = (
        isinstance(head.get("objects"), dict)
        and isinstance(step, int)
        and isinstance(ranks, list)
        and len(ranks) > 0
        and all(isinstance(own, dict) and parts <= set(own) for own in ranks)
    )
    return None if is_whole else "parts of it are missing"


def check_object(name: str, thing: Any) -> None:
    """Raise if a thing has no state to save and load."""
    if isinstance(thing, torch.Generator):
        return
    if not all(callable(getattr(thing, call, None)) for call in ("state_dict", "load_state_dict")):
        raise InvalidTypeError(
            f"{name} must have state_dict() and load_state_dict(), or be a torch.Generator, got a "
            f"{type(thing).__name__}; leave it out, or wrap it in an object that has them"
        )


def _state_of(name: str, thing: Any) -> Any:
    state = thing.get_state() if isinstance(thing, torch.Generator) else thing.state_dict()
    _check_plain(name, state)
    return state


def _set_state(thing: Any, state: Any) -> None:
    if isinstance(thing, torch.Generator):
        thing.set_state(state)
    else:
        thing.load_state_dict(state)


# By exact type: torch.load refuses what merely derives from these, such as numpy.float64.
_DICTS = (dict, OrderedDict, Counter)
_LISTS = (list, tuple, set)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)


def _check_plain(where: str, state: Any) -> None:
    """Raise if ``torch.load(weights_only=True)`` would refuse it, or a part of it is elsewhere."""
    if type(state) in _DICTS:
        for key, value in state.items():
            _check_plain(f"{where}[{key!r}]", value)
    elif type(state) in _LISTS:
        for index, value in enumerate(state):
            _check_plain(f"{where}[{index}]", value)
    elif hasattr(state, "device_mesh"):
        raise InvalidTypeError(
            f"{where} must be a whole tensor, got a DTensor, of which this rank holds a part; save "
            "sharded models with torch.distributed.checkpoint"
        )
    elif type(state) not in _PLAIN and not isinstance(state, torch.Tensor):
        raise InvalidTypeError(
            f"{where} must be of plain types and tensors, got a {type(state).__name__}; let the "
            f"state_dict() of {where.split('[')[0]} return numbers, strings, lists and dicts"
        )


def _unpacked(packed: bytes) -> Any:
    return torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)


def _common(ranks: Sequence[Any]) -> dict[str, Any]:
    """What was the same on all ranks, and so goes on at any number of them.

    Of one rank alone nobody knows whether it would have shared its random numbers with others.
    """
    found = {key: _common_entries([own[key] for own in ranks]) for key in ("random", "objects")}
    if len(ranks) == 1:
        found["random"] = {}
    return found


def _common_entries(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first, *others = ranks
    return {
        key: value
        for key, value in first.items()
        if all(key in own and _same(value, own[key]) for own in others)
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and set(one) == set(other)
            and all(_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return (
            isinstance(other, list | tuple)
            and len(one) == len(other)
            and all(map(_same, one, other))
        )
    return bool(one == other)
