"""Which tensors converge makes one.

======================  =================================================================
parameters              all in the optimiser's groups, with or without a gradient, but frozen
frozen parameters       skipped: ``requires_grad`` is False now and was so at the last converge,
                        or in no group of the optimiser; an optimiser step cannot have moved them
optimiser state         where replicas differ in it: local gradients, an update that feeds the
                        parameters back into it, or a replica that is being restored. Scalars of a
                        parameter that is none (step counters) stay each replica's own
floating-point buffers  averaged, if a model is given
other buffers           copied from the first replica that counts, if a model is given
tied tensors            once
expanded tensors        skipped: entries that share memory cannot be written in place
======================  =================================================================
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

import torch

from hdet import optimizers, tensors


class Selection(NamedTuple):
    """Local, dense, detached views that share storage with the model's own tensors."""

    parameters: list[torch.Tensor]
    state: list[torch.Tensor]
    buffers: list[torch.Tensor]
    copied: list[torch.Tensor]

    def describe(self) -> list[str]:
        """One line a tensor: its kind and its memory layout, to compare between replicas."""
        return [
            f"{kind} {tuple(tensor.shape)} {tensor.dtype} strides {tensor.stride()}"
            for kind, members in zip(self._fields, self, strict=True)
            for tensor in members
        ]

    def fingerprint(self) -> int:
        """32 bits of `describe`, equal on replicas that hold the same kinds of tensors."""
        return zlib.crc32("\n".join(self.describe()).encode())


def select(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | None,
    trained: set[torch.Tensor],
) -> Selection:
    """List the tensors, in the same order on every replica.

    Args:
        optimizer: whose groups hold the parameters.
        model: whose buffers take part; None leaves buffers alone.
        trained: the parameters that required a gradient at the last converge.
    """
    params = [p for p in optimizers.parameters(optimizer) if p.requires_grad or p in trained]
    state = [
        optimizer.state[param][name]
        for param in params
        for name in optimizers.averaged_state(optimizer, param)
    ]
    buffers = [] if model is None else list(model.buffers())
    floats = [param for param in params if tensors.is_averaged(param)]
    others = [param for param in params if not tensors.is_averaged(param)]
    return Selection(
        _dense("a parameter", floats),
        _dense("an optimiser state", state),
        _dense("a buffer", (b for b in buffers if tensors.is_averaged(b))),
        _dense("a buffer", [*others, *(b for b in buffers if not tensors.is_averaged(b))]),
    )


def _dense(name: str, candidates: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    unique: dict[tuple[object, ...], torch.Tensor] = {}
    for candidate in candidates:
        tensor = tensors.dense(name, candidate)
        if tensor.numel() > 0 and not tensors.overlaps_itself(tensor):
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            unique.setdefault(key, tensor)
    return list(unique.values())
