"""Small views on tensors that several stages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from hdet.errors import InvalidTypeError


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of ``tensor`` that lives here, without its graph: a DTensor's shard, else itself."""
    to_local = getattr(tensor, "to_local", None)
    shard: torch.Tensor = tensor.detach() if to_local is None else to_local().detach()
    return shard


def dense(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The local part as real numbers, or an error for a layout that cannot be averaged in place."""
    tensor = local(tensor)
    if tensor.layout != torch.strided:
        raise InvalidTypeError(
            f"{name} must be a dense (strided) tensor to be averaged, got layout {tensor.layout}; "
            "use a dense parameter, or leave it out of the optimiser that hdet drives"
        )
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def one_dimensional(tensor: torch.Tensor) -> torch.Tensor | None:
    """A flat view in memory order, sharing storage; None where memory has gaps or overlaps."""
    order = sorted(
        range(tensor.dim()), key=lambda dim: (tensor.stride()[dim], tensor.shape[dim]), reverse=True
    )
    ordered = tensor.permute(order)
    return ordered.view(-1) if ordered.is_contiguous() else None


def all_finite(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Whether no entry is NaN or infinite: a boolean on ``device``, not waited for.

    The largest magnitude is taken and not a 2-norm, which overflows for large halves.
    """
    floats = [t for t in map(local, tensors) if t.numel() > 0 and is_averaged(t)]
    if not floats:
        return torch.ones((), dtype=torch.bool, device=device)
    norm = torch.nn.utils.get_total_norm(floats, norm_type=float("inf"), foreach=None)
    return torch.isfinite(norm).to(device)


def mean_(target: torch.Tensor, copies: Sequence[torch.Tensor], *, wide: bool = False) -> None:
    """Fill ``target`` with the mean of ``copies``, accumulated as `accumulation_dtype` says."""
    total = copies[0].to(accumulation_dtype(target, wide=wide), copy=True)
    for copy in copies[1:]:
        total += copy
    target.copy_(total.div_(len(copies)))


def widest(device: torch.device) -> torch.dtype:
    """The most precise floating-point type that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def accumulation_dtype(tensor: torch.Tensor, *, wide: bool = False) -> torch.dtype:
    """The type that sums are kept in: float32 for anything narrower, else the tensor's own.

    Args:
        tensor: what is summed.
        wide: twice the type's own precision, where the device has it. x + x + x divided by three is
            not always x in x's own type; in a wider one it comes back bit for bit.
    """
    dtype = tensor.dtype
    if wide and tensor.device.type != "mps":
        return torch.complex128 if dtype.is_complex else torch.float64
    narrow = not dtype.is_complex and dtype.itemsize < torch.float32.itemsize
    return torch.float32 if narrow else dtype


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether entries share memory, as in an expanded tensor, which cannot be written."""
    return any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def is_averaged(tensor: torch.Tensor) -> bool:
    """Whether a mean of ``tensor`` is meaningful: floating-point or complex."""
    return tensor.is_floating_point() or tensor.is_complex()
