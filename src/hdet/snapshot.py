"""A point to come back to: parameters, optimiser state and buffers, copied and put back."""

from __future__ import annotations

from typing import Any

import torch

from hdet import optimizers, tensors


class Snapshot:
    """One copy of what training changes, in memory that is used again for each point.

    Args:
        optimizer: its parameters and their state are kept.
        model: its buffers are kept too; None keeps none.
        device: where the copy lives; None is next to what is copied, "cpu" frees the accelerator.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        device: torch.device | str | None,
    ) -> None:
        self.optimizer = optimizer
        self._model = model
        self._device = None if device is None else torch.device(device)
        self._dense: list[torch.Tensor] = []
        self._states: list[dict[str, Any]] = []

    @property
    def params(self) -> list[torch.Tensor]:
        """Those of the optimiser, in order."""
        return optimizers.parameters(self.optimizer)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was kept yet."""
        return not self._dense

    def forget(self) -> None:
        """Free the copy."""
        self._dense, self._states = [], []

    @torch.no_grad()
    def keep(self) -> None:
        """Copy the present point."""
        present = self._tensors()
        if len(present) != len(self._dense):  # the first one, or parameters have come or gone
            self._dense = [self._room(own) for own in present]
        for index, own in enumerate(present):
            if self._dense[index].shape != own.shape or self._dense[index].dtype != own.dtype:
                self._dense[index] = self._room(own)
            self._dense[index].copy_(own)
        params = self.params
        states = self._states if len(self._states) == len(params) else [{} for _ in params]
        self._states = [
            self._kept(self.optimizer.state.get(param, {}), before)
            for param, before in zip(params, states, strict=True)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Put the kept point back, into the same memory."""
        for own, kept in zip(self._tensors(), self._dense, strict=True):
            own.copy_(kept)
        for param, kept_state in zip(self.params, self._states, strict=True):
            state = self.optimizer.state[param]
            for name in set(state) - set(kept_state):
                del state[name]
            for name, value in kept_state.items():
                if not isinstance(value, torch.Tensor):
                    state[name] = value
                elif isinstance(state.get(name), torch.Tensor):
                    tensors.dense("an optimiser state", state[name]).copy_(value)
                else:  # dropped since; the copy must stay ours
                    state[name] = value.to(param.device if value.dim() else value.device, copy=True)
            if not state:
                del self.optimizer.state[param]

    def _tensors(self) -> list[torch.Tensor]:
        params = [tensors.dense("a parameter", param) for param in self.params]
        buffers = [] if self._model is None else list(self._model.buffers())
        return [*params, *(tensors.dense("a buffer", own) for own in buffers)]

    def _kept(self, state: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                own = tensors.dense("an optimiser state", value)
                room = before.get(name)
                if not isinstance(room, torch.Tensor) or room.shape != own.shape:
                    room = self._room(own)
                value = room.copy_(own)
            kept[name] = value
        return kept

    def _room(self, own: torch.Tensor) -> torch.Tensor:
        device = self._device or own.device
        pinned = own.is_cuda and device.type == "cpu"
        return torch.empty(own.shape, dtype=own.dtype, device=device, pin_memory=pinned)
