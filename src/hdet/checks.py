"""Argument checks, used where a value enters the library.

Each check returns the value in its plain type, or raises one line that names the argument, the
allowed range, the value received and the remedy, which no caller can leave out.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch

from hdet.errors import InvalidTypeError, InvalidValueError

SAVED = "load what state_dict() returned, from a file that is whole"
"""The remedy for a state that cannot be restored."""
_LARGEST = 2**63 - 1
"""What generators and tensors take for an integer."""


def integer(name: str, value: Any, *, minimum: int, remedy: str) -> int:
    """Return ``value`` as an int, if it is an integer of at least ``minimum``."""
    expected = f"{name} must be an integer >= {minimum}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidTypeError(_line(expected, value, remedy))
    if value < minimum:
        raise InvalidValueError(_line(expected, value, remedy))
    if int(value) > _LARGEST:
        raise InvalidValueError(_line(f"{expected} and below 2**63", value, remedy))
    return int(value)


def real(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
    remedy: str,
) -> float:
    """Return ``value`` as a float, if it is a finite real number in the stated interval."""
    interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    expected = f"{name} must be a finite number in {interval}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidTypeError(_line(expected, value, remedy))
    try:
        number = float(value)
    except OverflowError:  # an int beyond all floats
        number = math.inf
    too_low = number <= low if low_open else number < low
    too_high = number >= high if high_open else number > high
    if not math.isfinite(number) or too_low or too_high:
        raise InvalidValueError(_line(expected, value, remedy))
    return number


def seed(value: Any) -> int:
    """Return ``value`` as an int, if it can key generators."""
    return integer("seed", value, minimum=-(2**63), remedy="the default is 0")


def saved_numbers(name: str, value: Any, *, length: int) -> list[float]:
    """Return a saved list of ``length`` finite numbers."""
    if not isinstance(value, list | tuple) or len(value) != length:
        raise InvalidValueError(_line(f"{name} must be a list of {length} numbers", value, SAVED))
    return [real(f"{name}[{index}]", own, remedy=SAVED) for index, own in enumerate(value)]


def numbers_of(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raise unless ``value`` is nested lists of floats of a shape; NaN and infinity are welcome."""
    if not _has_shape(value, shape):
        raise InvalidValueError(_line(f"{name} must be numbers of shape {shape}", value, SAVED))


def _has_shape(value: Any, shape: tuple[int, ...]) -> bool:
    if not shape:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return isinstance(value, float) or (is_integer and abs(value) <= _LARGEST)
    if not isinstance(value, list) or len(value) != shape[0]:
        return False
    return all(_has_shape(own, shape[1:]) for own in value)


def describe(thing: object) -> str:
    """Class and plain settings, the same on every process: what replicas compare."""
    settings = {
        name.lstrip("_"): value
        for name, value in sorted(vars(thing).items())
        if isinstance(value, bool | int | float | str | tuple | None)
    }
    listed = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{type(thing).__name__}({listed})"


def boolean(name: str, value: Any) -> bool:
    """Return ``value``, if it is True or False; any other is likely a misplaced argument."""
    if not isinstance(value, bool):
        remedy = f"write {name}=True or {name}=False"
        raise InvalidTypeError(_line(f"{name} must be True or False", value, remedy))
    return value


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return ``value``, if it is one of ``choices``."""
    if value not in choices:
        listed = " or ".join(repr(choice) for choice in choices)
        raise InvalidValueError(_line(f"{name} must be {listed}", value, "use one of them"))
    return str(value)


def instance(name: str, value: Any, kind: type, *, remedy: str) -> Any:
    """Return ``value``, if it is an instance of ``kind``."""
    if not isinstance(value, kind):
        raise InvalidTypeError(
            _line(f"{name} must be an instance of {kind.__name__}", value, remedy)
        )
    return value


def optional(name: str, value: Any, kind: type, *, remedy: str) -> Any:
    """Return ``value``, if it is None or an instance of ``kind``."""
    return None if value is None else instance(name, value, kind, remedy=remedy)


def optional_integer(name: str, value: Any, *, minimum: int, remedy: str) -> int | None:
    """Return ``value``, if it is None or an integer of at least ``minimum``."""
    return None if value is None else integer(name, value, minimum=minimum, remedy=remedy)


def optional_device(name: str, value: Any) -> torch.device | None:
    """Return ``value`` as a device, if it is None or one on which tensors can be made here."""
    expected = f"{name} must be None or a device of torch's on this machine"
    remedy = "pass None, 'cpu', or for example 'cuda:0'"
    if value is None:
        return None
    if not isinstance(value, torch.device | str):
        raise InvalidTypeError(_line(expected, value, remedy))
    try:
        device = torch.empty(0, device=value).device
    except (RuntimeError, AssertionError):  # a build without CUDA asserts
        raise InvalidValueError(_line(expected, value, remedy)) from None
    if device.type == "meta":  # it holds no numbers
        raise InvalidValueError(_line(expected, value, remedy))
    return device


def vector(name: str, value: Any, *, length: int | None = None) -> torch.Tensor:
    """Return ``value`` as a detached, finite float64 vector, of ``length`` entries if given."""
    remedy = "pass a tensor with one entry for each replica"
    try:
        tensor = torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        expected = f"{name} must be a one-dimensional tensor or sequence of numbers"
        raise InvalidTypeError(_line(expected, value, remedy)) from None
    if tensor.dim() != 1 or tensor.numel() == 0 or (length is not None and len(tensor) != length):
        count = "at least one" if length is None else str(length)
        expected = f"{name} must be one-dimensional with {count} entries"
        raise InvalidValueError(f"{expected}, got shape {tuple(tensor.shape)}; {remedy}")
    if not bool(torch.isfinite(tensor).all()):
        remedy = "leave out replicas that diverged"
        raise InvalidValueError(_line(f"{name} must be finite", tensor.tolist(), remedy))
    return tensor


def shown(value: Any) -> str:
    """A value in one short line."""
    text = " ".join(repr(value).split("\n"))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _line(expected: str, value: Any, remedy: str) -> str:
    return f"{expected}, got {shown(value)} ({type(value).__name__}); {remedy}"
