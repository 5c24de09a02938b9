"""How virtual replicas are held: on a line through two points, or as full copies.

With shared gradients and an update that is linear in the rate, replica r stands at
theta_sync + rho_r * D, D being the displacement of the base trajectory since the last converge (per
parameter group). Two copies then hold any number of replicas, and the base point is their mean.
Elsewhere each replica keeps its own parameters and optimiser state.
"""

from __future__ import annotations

import abc
import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hdet import optimizers, tensors
from hdet.replicas.versions import Versions

Offsets = dict[torch.Tensor, list[torch.Tensor]]
"""Parameter -> how far each replica is from the base point at the start of the cycle."""


class AbstractStorage(abc.ABC):
    """Keeps N replicas of the optimiser's trainable parameters."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, num_replicas: int, offsets: Offsets
    ) -> None:
        self._optimizer = optimizer
        self._num_replicas = num_replicas
        self._offsets = offsets
        self._params: list[torch.Tensor] = []
        self._groups: list[int] = []
        self._base: list[torch.Tensor] = []
        self._base_is_kept = False
        self.forked = False

    def reset(self) -> None:
        """Start all replicas from the base point, wherever it is when they are next needed."""
        self.forked = False

    def fork(self) -> None:
        """Let the replicas leave the base point together, unless they already have.

        Frozen parameters cannot move within a cycle and are not held. One that is unfrozen or added
        inside a cycle joins where it stands.
        """
        if self.forked and not self._base_is_kept:
            with torch.no_grad():
                self._take_up_changes()
        members = [
            (param, index)
            for index, group in enumerate(self._optimizer.param_groups)
            for param in group["params"]
            if param.requires_grad
        ]
        if self.forked:
            known = {id(param) for param in self._params}
            members = [member for member in members if id(member[0]) not in known]
            if not members:
                return
        else:
            self._params, self._groups = [], []
        start = len(self._params)
        self._params += [param for param, _ in members]
        self._groups += [index for _, index in members]
        with torch.no_grad():
            self._join(start)
        self.forked = True

    @abc.abstractmethod
    def _join(self, start: int) -> None:
        """Hold the parameters from ``start`` on, all replicas at the base point."""

    @abc.abstractmethod
    def _put(self, replica: int) -> None:
        """Write a replica's parameters into the module."""

    def load(self, replica: int) -> None:
        """Put a replica's parameters in place, keeping the base point."""
        self.fork()
        if not self._base_is_kept:
            _copy(self._base, self._params)
            self._base_is_kept = True
        self._put(replica)

    def unload(self) -> None:
        """Put the base point back, to the last bit."""
        if self._base_is_kept:
            _copy(self._params, self._base)
            self._base_is_kept = False
            self._note_versions()

    def _take_up_changes(self) -> None:
        """Parameters were written to by others than the optimiser: nothing to do on a line."""
        return

    def _note_versions(self) -> None:
        """Remember what was written last: nothing to do on a line."""
        return

    @abc.abstractmethod
    def after_step(self) -> None:
        """The optimiser moved the base point: move the replicas."""

    @abc.abstractmethod
    def merge_(self, valid_R: Sequence[bool], *, include_state: bool) -> None:
        """Set the base point to the mean of the valid replicas."""

    @abc.abstractmethod
    def finite(self, device: torch.device) -> torch.Tensor:
        """Whether each replica's parameters are finite, ``[R]``."""


class LineStorage(AbstractStorage):
    """theta_r = theta_sync + rho_r * (theta_base - theta_sync), for each parameter group."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_replicas: int,
        offsets: Offsets,
        rate_multiplier: Callable[[int, int], float],
    ) -> None:
        super().__init__(optimizer, num_replicas, offsets)
        self._rate_multiplier = rate_multiplier
        self._sync: list[torch.Tensor] = []

    def _join(self, start: int) -> None:
        new = self._params[start:]
        # The memory of the last cycle serves again where the parameters are still alike.
        if start > 0 or not _alike(self._sync, new):
            self._sync[start:] = [torch.empty_like(param) for param in new]
            self._base[start:] = [torch.empty_like(param) for param in new]
        _copy(self._sync[start:], new)

    def _put(self, replica: int) -> None:
        self._interpolate(lambda group: self._rate_multiplier(replica, group))
        for param in self._params:
            if param in self._offsets:
                param.add_(self._offsets[param][replica])

    def after_step(self) -> None:
        """The base point carries the line with it."""

    def merge_(self, valid_R: Sequence[bool], *, include_state: bool) -> None:
        """The base point is the mean already, unless a replica is left out."""
        del include_state  # there is one state, the base point's
        if not all(valid_R):
            members = [replica for replica, valid in enumerate(valid_R) if valid]
            _copy(self._base, self._params)
            self._interpolate(
                lambda group: (
                    sum(self._rate_multiplier(replica, group) for replica in members) / len(members)
                )
            )
            for param in self._params:
                if param in self._offsets:
                    own = [self._offsets[param][replica] for replica in members]
                    param.add_(torch.stack(own).mean(dim=0))
        self.forked = False

    def finite(self, device: torch.device) -> torch.Tensor:
        """Points of one line are finite together."""
        return tensors.all_finite([*self._params, *self._sync], device).expand(self._num_replicas)

    def _interpolate(self, multiplier_of: Callable[[int], float]) -> None:
        for group in sorted(set(self._groups)):
            members = [i for i, own in enumerate(self._groups) if own == group]
            params = [self._params[i] for i in members]
            base = [self._base[i] for i in members]
            multiplier = multiplier_of(group)
            if multiplier == 1.0:
                _copy(params, base)
            else:
                _copy(params, [self._sync[i] for i in members])
                torch._foreach_lerp_(params, base, multiplier)


class CopiesStorage(AbstractStorage):
    """Parameters and optimiser state of every replica, each stepped by the optimiser itself."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        num_replicas: int,
        offsets: Offsets,
        activate: Callable[[int | None], None],
    ) -> None:
        super().__init__(optimizer, num_replicas, offsets)
        self._activate = activate
        self._copies: list[list[torch.Tensor]] = [[] for _ in range(num_replicas)]
        self._states: list[defaultdict[torch.Tensor, Any]] = []
        self._versions = Versions()

    def reset(self) -> None:
        """Forget the replicas' optimiser states too."""
        super().reset()
        self._states = []

    def _join(self, start: int) -> None:
        new = self._params[start:]
        if start > 0 or not _alike(self._base, new):
            self._base[start:] = [torch.empty_like(param) for param in new]
            for own in self._copies:
                own[start:] = [torch.empty_like(param) for param in new]
        for replica, own in enumerate(self._copies):
            _copy(own[start:], new)
            for copied, param in zip(own[start:], new, strict=True):
                if param in self._offsets:
                    copied.add_(self._offsets[param][replica])
        if not self._states:
            self._states = [_clone_state(self._optimizer) for _ in range(self._num_replicas)]
        self._note_versions()

    def _put(self, replica: int) -> None:
        _copy(self._params, self._copies[replica])

    def _note_versions(self) -> None:
        self._versions.note(self._params)

    def _take_up_changes(self) -> None:
        """A parameter that others wrote to since our last write has that value on all replicas."""
        for index, changed in enumerate(self._versions.changed()):
            if changed:
                for own in self._copies:
                    own[index].copy_(self._params[index])
        self._note_versions()

    def after_step(self) -> None:
        """Take each replica's own step, with its values and its state and the shared gradient."""
        optimizer = self._optimizer
        _copy(self._base, self._params)
        own_state = optimizer.state
        # A fused step under a GradScaler has just unscaled the gradients in place.
        scale = getattr(optimizer, "grad_scale", None)
        if scale is not None:
            optimizer.grad_scale = None  # type: ignore[attr-defined]  # set by torch's GradScaler
        try:
            for replica in range(self._num_replicas):
                self._put(replica)
                optimizer.state = self._states[replica]
                self._activate(replica)
                _step_without_hooks(optimizer)
                _copy(self._copies[replica], self._params)
        finally:
            optimizer.state = own_state
            if scale is not None:
                optimizer.grad_scale = scale  # type: ignore[attr-defined]  # as above
            self._activate(None)
            _copy(self._params, self._base)
            self._note_versions()

    def merge_(self, valid_R: Sequence[bool], *, include_state: bool) -> None:
        """Mean parameters into the base point, and mean state where replicas differ in it."""
        members = [replica for replica, valid in enumerate(valid_R) if valid]
        for index, param in enumerate(self._params):
            tensors.mean_(param, [self._copies[replica][index] for replica in members])
        if include_state:
            for param in self._params:
                self._merge_state(param, members)
        self.forked = False

    def _merge_state(self, param: torch.Tensor, members: Sequence[int]) -> None:
        for name in optimizers.averaged_state(self._optimizer, param):
            base = self._optimizer.state[param][name]
            tensors.mean_(base, [self._states[replica][param][name] for replica in members])
            for state in self._states:
                state[param][name].copy_(base)

    def finite(self, device: torch.device) -> torch.Tensor:
        """Each replica's own parameters."""
        return torch.stack([tensors.all_finite(own, device) for own in self._copies])


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def _alike(held: Sequence[torch.Tensor], params: Sequence[torch.Tensor]) -> bool:
    return len(held) == len(params) and all(
        own.shape == param.shape and own.dtype == param.dtype and own.device == param.device
        for own, param in zip(held, params, strict=True)
    )


def _clone_state(optimizer: torch.optim.Optimizer) -> defaultdict[torch.Tensor, Any]:
    state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
    for param, entries in optimizer.state.items():
        state[param] = copy.deepcopy(entries)
    return state


def _step_without_hooks(optimizer: torch.optim.Optimizer) -> None:
    """The class's own step: hooks see one step of the user's, however many replicas follow it."""
    step = type(optimizer).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__  # type: ignore[attr-defined]  # set by torch's own wrapper
    step(optimizer)
