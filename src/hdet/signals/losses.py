"""Reading what a user passes as the loss."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch

from hdet.errors import InvalidTypeError, InvalidValueError

Losses = torch.Tensor | float | Sequence[torch.Tensor | float]
"""A scalar; with virtual replicas, one for each: a tensor ``[L]`` or a sequence of scalars."""


def read_losses(loss: Any, num_local: int) -> torch.Tensor:
    """One detached loss for each replica in this process, ``[L]``; waits for nothing.

    >>> read_losses(0.5, 1)
    tensor([0.5000], dtype=torch.float64)
    """
    if isinstance(loss, list | tuple) and loss:
        loss = torch.stack([_scalar(own) for own in loss])
    elif not isinstance(loss, torch.Tensor):
        loss = _scalar(loss)
    if loss.layout != torch.strided or loss.is_meta or loss.dtype.itemsize < 2:
        raise InvalidTypeError(
            f"loss must be a dense tensor that holds numbers of 16 bits or more, got {loss.dtype} "
            f"of layout {loss.layout} on {loss.device}; pass what was differentiated"
        )
    if not loss.is_floating_point():
        raise InvalidTypeError(
            f"loss must be floating-point, got a tensor of {loss.dtype}; pass what was "
            "differentiated, detached or not"
        )
    if loss.numel() != num_local or loss.dim() > 1:
        raise InvalidValueError(
            f"loss must be {_expected(num_local)}, got shape {tuple(loss.shape)}; "
            f"{_remedy(num_local)}"
        )
    losses_L: torch.Tensor = loss.detach().reshape(num_local)
    return losses_L


def _scalar(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise InvalidValueError(
                f"each loss must be a scalar, got shape {tuple(value.shape)}; reduce it, for "
                "example with .mean()"
            )
        return value.detach().reshape(())
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidTypeError(
            f"loss must be a floating-point tensor or a float, got {value!r} "
            f"({type(value).__name__}); pass what was differentiated, detached or not"
        )
    return torch.tensor(float(value), dtype=torch.float64)


def _expected(num_local: int) -> str:
    return "a scalar" if num_local == 1 else f"{num_local} values, one for each replica"


def _remedy(num_local: int) -> str:
    if num_local == 1:
        return "reduce it, for example with .mean()"
    return "collect the losses of the fan_out() loop and pass torch.stack(losses)"
