"""Each virtual replica's own buffers: running statistics drift apart between converges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from hdet import tensors
from hdet.replicas.versions import Versions


class _Buffer(NamedTuple):
    module: torch.nn.Module
    name: str
    shown: torch.Tensor
    """The tensor that stands in the module."""
    copies: list[torch.Tensor]
    """Each replica's own value."""


class ReplicaBuffers:
    """Swaps a replica's buffers in for its forward pass; outside the loop the mean is shown.

    A buffer that somebody else wrote to, replaced or registered outside the loop is taken up as the
    new value of all replicas. Inside it, a forward pass may write to a buffer in place or bind
    another tensor to its name (``self.ema = 0.9 * self.ema + ...``): both are that replica's own.
    """

    def __init__(self, model: torch.nn.Module, num_replicas: int) -> None:
        self._model = model
        self._num_replicas = num_replicas
        self._buffers: list[_Buffer] = []
        self._versions = Versions()
        self._loaded: int | None = None

    def reset(self) -> None:
        """Take all buffers up anew."""
        self._buffers = []
        self._note_versions()

    def load(self, replica: int) -> None:
        """Keep what the last replica's forward pass left, then swap this one's in."""
        if self._loaded is None:
            self._take_up_changes()
        self._keep()
        for buffer in self._buffers:
            buffer.shown.copy_(buffer.copies[replica])
        self._loaded = replica

    def unload(self) -> None:
        """Show the mean of the replicas outside the loop."""
        self._keep()
        self._show_mean(range(self._num_replicas))

    def merge_(self, valid_R: Sequence[bool]) -> None:
        """The mean of those that count; all start from it again."""
        self._show_mean([replica for replica, valid in enumerate(valid_R) if valid])
        self.reset()

    def _take_up_changes(self) -> None:
        known = {
            (buffer.module, buffer.name): buffer
            for buffer, changed in zip(self._buffers, self._versions.changed(), strict=True)
            if not changed
        }
        self._buffers = []
        for module, name, live in _live(self._model):
            buffer = known.get((module, name))
            if buffer is None or buffer.shown is not live or not _alike(buffer.copies[0], live):
                copies = [live.detach().clone() for _ in range(self._num_replicas)]
                buffer = _Buffer(module, name, live, copies)
            self._buffers.append(buffer)
        self._note_versions()

    def _keep(self) -> None:
        """Take what stands in the modules as the loaded replica's."""
        if self._loaded is None:
            return
        kept = []
        for buffer in self._buffers:
            live = getattr(buffer.module, buffer.name, None)
            # One of another shape is no longer the same statistic: it stays as it is, for all.
            if isinstance(live, torch.Tensor) and _alike(buffer.shown, live):
                buffer.copies[self._loaded].copy_(live)
                if live is not buffer.shown:
                    setattr(buffer.module, buffer.name, buffer.shown)
                kept.append(buffer)
        self._buffers = kept
        self._loaded = None

    def _show_mean(self, members: Sequence[int]) -> None:
        for buffer in self._buffers:
            own = [buffer.copies[replica] for replica in members]
            if tensors.is_averaged(buffer.shown):
                tensors.mean_(buffer.shown, own, wide=True)
            else:
                buffer.shown.copy_(own[0])
        self._note_versions()

    def _note_versions(self) -> None:
        self._versions.note([buffer.shown for buffer in self._buffers])


def _live(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
    """Every buffer that can be written to, once, and where it stands."""
    seen: set[int] = set()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if id(buffer) not in seen and not tensors.overlaps_itself(buffer):
                seen.add(id(buffer))
                yield module, name, buffer


def _alike(known: torch.Tensor, live: torch.Tensor) -> bool:
    return (known.shape, known.dtype, known.device) == (live.shape, live.dtype, live.device)
