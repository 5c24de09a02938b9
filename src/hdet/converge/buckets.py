"""The average itself: in place, through flat buckets of bounded size, two in flight.

A bucket is packed, all-reduced without waiting, and unpacked while the next one travels. So the
peak is two buckets, not a second model, and the number of messages does not grow with the number
of tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

from hdet import tensors

BUCKET_BYTES = 32 * 2**20


class Waitable(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Return once the result may be used."""


AllReduce = Callable[[torch.Tensor], Waitable]


class _Bucket(NamedTuple):
    pieces: list[torch.Tensor]
    slices: list[torch.Tensor]
    flat: torch.Tensor


def average_(
    members: Sequence[torch.Tensor],
    all_reduce: AllReduce,
    *,
    weight: int,
    total: int,
    wide: bool = False,
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Replace every tensor by sum_r weight_r x_r / total; storage pointers stay.

    Args:
        members: dense tensors, in the same order on every replica.
        all_reduce: starts an in-place sum over the replicas.
        weight: 1 if this replica counts, 0 if it is left out and only receives.
        total: the sum of the weights; 1 with ``weight`` 0 or 1 copies one replica to all.
        wide: sum in twice the precision, see `hdet.tensors.accumulation_dtype`.
        bucket_bytes: the most memory one bucket takes.
    """
    staged = [(tensor, tensors.one_dimensional(tensor)) for tensor in members]
    flats: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    copies_back: list[tuple[torch.Tensor, torch.Tensor]] = []
    for tensor, flat in staged:
        if flat is None:  # gaps in memory: average a copy, then write it back
            contiguous = tensor.contiguous()
            copies_back.append((tensor, contiguous))
            flat = contiguous.view(-1)
        key = (tensor.device, tensors.accumulation_dtype(tensor, wide=wide))
        flats.setdefault(key, []).append(flat)

    in_flight: deque[tuple[_Bucket, Waitable]] = deque()
    for (device, sum_dtype), views in flats.items():
        for bucket in _buckets(views, device, sum_dtype, bucket_bytes):
            _pack(bucket, weight)
            in_flight.append((bucket, all_reduce(bucket.flat)))
            if len(in_flight) == 2:
                _finish(*in_flight.popleft(), total)
    while in_flight:
        _finish(*in_flight.popleft(), total)
    for tensor, contiguous in copies_back:
        tensor.copy_(contiguous)


def _buckets(
    flats: Sequence[torch.Tensor], device: torch.device, dtype: torch.dtype, bucket_bytes: int
) -> Iterator[_Bucket]:
    """Cut the tensors, end to end, into pieces that fill one bucket after another."""
    capacity = max(bucket_bytes // dtype.itemsize, 1)
    pieces: list[torch.Tensor] = []
    room = capacity
    for flat in flats:
        start = 0
        while start < flat.numel():
            piece = flat[start : start + room]
            pieces.append(piece)
            start += piece.numel()
            room -= piece.numel()
            if room == 0:
                yield _bucket(pieces, device, dtype)
                pieces, room = [], capacity
    if pieces:
        yield _bucket(pieces, device, dtype)


def _bucket(pieces: list[torch.Tensor], device: torch.device, dtype: torch.dtype) -> _Bucket:
    sizes = [piece.numel() for piece in pieces]
    flat = torch.empty(sum(sizes), device=device, dtype=dtype)
    return _Bucket(pieces, list(torch.split(flat, sizes)), flat)


def _pack(bucket: _Bucket, weight: int) -> None:
    if weight == 0:
        bucket.flat.zero_()  # not a product: 0 * NaN is NaN
    else:
        torch._foreach_copy_(bucket.slices, bucket.pieces)


def _finish(bucket: _Bucket, work: Waitable, total: int) -> None:
    work.wait()
    if total != 1:
        bucket.flat.div_(total)
    torch._foreach_copy_(bucket.pieces, bucket.slices)
