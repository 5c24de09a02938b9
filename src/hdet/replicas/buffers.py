"""Each virtual replica's own buffers: running statistics drift apart between converges."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hdet import tensors


class ReplicaBuffers:
    """Swaps a replica's buffers in for its forward pass; outside the loop the mean is shown.

    A buffer that somebody else wrote to, replaced or registered outside the loop is taken up as the
    new value of all replicas.
    """

    def __init__(self, model: torch.nn.Module, num_replicas: int) -> None:
        self._model = model
        self._num_replicas = num_replicas
        self._shown: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._copies: list[list[torch.Tensor]] = []
        self._loaded: int | None = None

    def reset(self) -> None:
        """Take all buffers up anew."""
        self._shown, self._versions, self._copies = [], [], []

    def load(self, replica: int) -> None:
        """Keep what the last replica's forward pass left, then swap this one's in."""
        if self._loaded is None:
            self._take_up_changes()
        self._keep()
        for buffer, copies in zip(self._shown, self._copies, strict=True):
            buffer.copy_(copies[replica])
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
        live = [b for b in self._model.buffers() if not tensors.overlaps_itself(b)]
        known = {
            id(buffer): (version, copies)
            for buffer, version, copies in zip(
                self._shown, self._versions, self._copies, strict=True
            )
        }
        self._copies = []
        for buffer in live:
            version, copies = known.get(id(buffer), (None, []))
            if version != buffer._version or copies[0].shape != buffer.shape:
                copies = [buffer.clone() for _ in range(self._num_replicas)]
            self._copies.append(copies)
        self._shown = live
        self._versions = [buffer._version for buffer in live]

    def _keep(self) -> None:
        if self._loaded is not None:
            for buffer, copies in zip(self._shown, self._copies, strict=True):
                copies[self._loaded].copy_(buffer)
        self._loaded = None

    def _show_mean(self, members: Sequence[int]) -> None:
        for buffer, copies in zip(self._shown, self._copies, strict=True):
            own = [copies[replica] for replica in members]
            if tensors.is_averaged(buffer):
                tensors.mean_(buffer, own, wide=True)
            else:
                buffer.copy_(own[0])
        self._versions = [buffer._version for buffer in self._shown]
