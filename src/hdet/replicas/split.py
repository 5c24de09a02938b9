"""Cutting one batch into one micro-batch for each virtual replica."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from hdet.errors import InvalidTypeError, InvalidValueError


def split(batch: Any, num_replicas: int) -> list[Any]:
    """Cut every tensor in ``batch`` into ``num_replicas`` equal parts along dimension 0.

    Tuples (named ones too), lists and mappings are rebuilt around the parts. Zero-dimensional
    tensors and everything that is not a tensor go to every part unchanged.

    >>> split({"x": torch.arange(4), "name": "a"}, 2)[1]
    {'x': tensor([2, 3]), 'name': 'a'}
    """
    sizes = {tensor.shape[0]: tuple(tensor.shape) for tensor in _tensors(batch)}
    if not sizes:
        raise InvalidTypeError(
            f"batch must hold at least one tensor to split, got {type(batch).__name__}; "
            "pass tensors, nested in tuples, lists or dicts"
        )
    if len(sizes) > 1:
        raise InvalidValueError(
            f"batch must have tensors of one size along dimension 0, got {sorted(sizes.values())}; "
            "pass only what is to be split"
        )
    (size,) = sizes
    if size == 0 or size % num_replicas != 0:
        raise InvalidValueError(
            f"batch must divide evenly over {num_replicas} replicas, got {size} examples; use a "
            f"batch size that is a multiple of {num_replicas}, and drop_last=True in the DataLoader"
        )
    return [_part(batch, index, size // num_replicas) for index in range(num_replicas)]


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        if batch.dim() > 0:
            yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from _tensors(value)


def _part(batch: Any, index: int, length: int) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[index * length : (index + 1) * length] if batch.dim() > 0 else batch
    if isinstance(batch, Mapping):
        parts = {key: _part(value, index, length) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return parts
        whole = copy.copy(batch)
        whole.update(parts)
        return whole
    if isinstance(batch, tuple | list):
        values = [_part(value, index, length) for value in batch]
        # A named tuple takes its fields one by one.
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch
