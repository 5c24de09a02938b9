"""What goes wrong, in one line each: argument, allowed range, value received, remedy.

Every error of ours is an `HDETError` and also the built-in error a caller would expect, so that
``except ValueError`` keeps working in code that has never heard of this library.
"""

from __future__ import annotations

import sys
import warnings


class HDETError(Exception):
    """Base of every error that hdet raises on purpose."""


class InvalidValueError(HDETError, ValueError):
    """An argument has the right type and a value outside its range."""


class InvalidTypeError(HDETError, TypeError):
    """An argument has the wrong type."""


class UsageError(HDETError, ValueError):
    """A call came in the wrong order or without something it needs."""


class ReplicaMismatchError(HDETError, ValueError):
    """The replicas disagree on something they must share; names the replicas and the difference."""


class ReplicaLostError(HDETError, RuntimeError):
    """Replicas did not answer: they died, or take other steps; names them."""


class NonFiniteError(HDETError, ValueError):
    """Every replica holds NaN or infinite parameters, so there is nothing left to average."""


class CheckpointError(HDETError, OSError):
    """A checkpoint cannot be written, or none of those that are there can be read."""


class HDETWarning(UserWarning):
    """A setting that works but can hardly be what was meant."""


def warn(message: str) -> None:
    """Warn at the user's own line that led here: the first frame outside this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_globals.get("__name__", "").split(".")[0] == "hdet" and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, HDETWarning, stacklevel=level)
