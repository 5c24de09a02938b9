"""Whether what a file holds can take the place of what an object holds now.

PyTorch's schedulers put whatever a state says into their attributes. A damaged one then breaks the
run steps later, in a line that does not name the file; or it hides a method of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch

from hdet import checks
from hdet.errors import InvalidValueError

_SHAPES = {"cos", "linear"}


def check_scheduler(
    name: str,
    state: Any,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    held: dict[str, Any],
) -> None:
    """Raise if ``state`` cannot be the attributes of a torch scheduler such as this one.

    Args:
        name: what to call it in a message.
        state: what its ``load_state_dict`` would be given.
        scheduler: whose state it is to become.
        held: its state as it stands.
    """
    checks.instance(name, state, dict, remedy=checks.SAVED)
    # OneCycleLR's phases name entries of the groups.
    words = set(scheduler.optimizer.param_groups[0])
    for key, value in state.items():
        where = f"{name}[{key!r}]"
        if not isinstance(key, str) or key == "optimizer" or _is_method(scheduler, key):
            raise InvalidValueError(
                f"{name} must be that of a {type(scheduler).__name__}, got an entry "
                f"{checks.shown(key)}, which is no part of one; {checks.SAVED}"
            )
        if key == "use_beta1" and value is not held.get(key):
            raise InvalidValueError(
                f"{where} must be {held.get(key)!r} for this optimizer, got "
                f"{checks.shown(value)}; build the optimizer as it was when the state was saved"
            )
        if key in held:
            check_alike(where, value, held[key], words)


def _is_method(scheduler: object, key: str) -> bool:
    """Or a property or a slot: what an attribute of the same name would hide or write to."""
    return hasattr(getattr(type(scheduler), key, None), "__get__") or key.startswith("__")


def check_alike(name: str, value: Any, own: Any, words: Collection[str]) -> None:
    """Raise unless ``value`` is of the structure and of the types of ``own``.

    Numbers may be ints, floats or tensors of one element, and finite where ours are. Lists of
    mappings and mappings without names may be of another length.

    Args:
        name: what to call it in a message.
        value: what a file holds.
        own: what stands there now.
        words: texts that may stand for each other.
    """
    if isinstance(own, dict):
        _check_mapping(name, value, own, words)
    elif isinstance(own, list | tuple):
        _check_sequence(name, value, own, words)
    elif isinstance(own, bool):
        _require(name, isinstance(value, bool), value, "True or False")
    elif isinstance(own, str):
        kinds = [{own}, _SHAPES, set(words)]
        known = isinstance(value, str) and any({own, value} <= kind for kind in kinds)
        _require(name, known, value, f"{own!r}, as it is now")
    elif isinstance(own, int) or (isinstance(own, float | torch.Tensor) or own is None):
        number = _number(value, own)
        is_none = value is None and own is None
        _require(name, number or is_none, value, "a finite number, as it is now")
        if isinstance(own, int):
            _require(name, not isinstance(value, float) or value.is_integer(), value, "an integer")


def _check_mapping(name: str, value: Any, own: dict[Any, Any], words: Collection[str]) -> None:
    checks.instance(name, value, dict, remedy=checks.SAVED)
    for key in own:
        if isinstance(key, str):
            _require(name, key in value, sorted(map(str, value)), f"a mapping with {key!r}")
    for key, entry in value.items():
        if key in own:
            check_alike(f"{name}[{key!r}]", entry, own[key], words)
        elif own:
            known = isinstance(key, int) and not any(isinstance(k, str) for k in own)
            _require(name, known, key, "a mapping of known keys")
            check_alike(f"{name}[{key!r}]", entry, next(iter(own.values())), words)


def _check_sequence(
    name: str, value: Any, own: list[Any] | tuple[Any, ...], words: Collection[str]
) -> None:
    _require(name, isinstance(value, list | tuple), value, "a list")
    if not own:
        return
    if not isinstance(own[0], dict):
        _require(name, len(value) == len(own), value, f"a list of {len(own)} entries")
    else:
        _require(name, len(value) > 0, value, "a list of at least one entry")
    for index, entry in enumerate(value):
        check_alike(f"{name}[{index}]", entry, own[min(index, len(own) - 1)], words)


def _number(value: Any, own: Any) -> bool:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.layout != torch.strided or value.device.type == "meta":
            return False
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, int):
        return abs(value) < 2**63
    unbounded = isinstance(own, float) and not math.isfinite(own)
    return unbounded or math.isfinite(value)


def _require(name: str, holds: bool, value: Any, expected: str) -> None:
    if not holds:
        raise InvalidValueError(
            f"{name} must be {expected}, got {checks.shown(value)}; {checks.SAVED}"
        )
