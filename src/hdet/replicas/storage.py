"""How virtual replicas are held: on a line through two points, or as full copies.

With shared gradients and an update that is linear in the rate, replica r stands at
theta_sync + rho_r * D, D being the displacement of the base trajectory since the last converge
(per parameter group). Two copies then hold any number of replicas, and the base point is their
mean. Elsewhere each replica keeps its own parameters and optimiser state.
"""

from __future__ import annotations

import abc
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hdet import optimizers, tensors

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
        self._forked = False
        self._params: list[torch.Tensor] = []
        self._groups: list[int] = []

    def reset(self) -> None:
        """Start all replicas from the base point, wherever it is when they are next needed."""
        self._forked = False

    def fork(self) -> None:
        """Let the replicas leave the base point together, unless they already have."""
        if self._forked:
            return
        # The tensors themselves, not `.detach()` views: offsets are keyed by parameter. Frozen
        # parameters cannot move within the cycle.
        members = [
            (param, index)
            for index, group in enumerate(self._optimizer.param_groups)
            for param in group["params"]
            if param.requires_grad
        ]
        self._params = [param for param, _ in members]
        self._groups = [index for _, index in members]
        with torch.no_grad():
            self._fork()
        self._forked = True

    @abc.abstractmethod
    def _fork(self) -> None:
        """Take the copies."""

    @abc.abstractmethod
    def load(self, replica: int) -> None:
        """Put a replica's parameters in place."""

    @abc.abstractmethod
    def unload(self) -> None:
        """Put the base point back."""

    def before_step(self) -> None:
        """Make sure that the replicas left before the base point moves."""
        self.fork()

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
        self._base: list[torch.Tensor] = []
        self._base_is_kept = False

    def _fork(self) -> None:
        # The memory of the last cycle serves again where the parameters are still the same ones.
        if [t.shape for t in self._sync] != [p.shape for p in self._params]:
            self._sync = [torch.empty_like(param) for param in self._params]
            self._base = [torch.empty_like(param) for param in self._params]
        _copy(self._sync, self._params)
        self._base_is_kept = False

    def load(self, replica: int) -> None:
        """One fused interpolation a group."""
        self.fork()
        if not self._base_is_kept:
            _copy(self._base, self._params)
            self._base_is_kept = True
        self._interpolate([self._rate_multiplier(replica, group) for group in self._all_groups()])
        for param in self._params:
            if param in self._offsets:
                param.add_(self._offsets[param][replica])

    def unload(self) -> None:
        """Exactly the base point, not an interpolation."""
        _copy(self._params, self._base)
        self._base_is_kept = False

    def after_step(self) -> None:
        """The base point carries the line with it."""

    def merge_(self, valid_R: Sequence[bool], *, include_state: bool) -> None:
        """The base point is the mean already, unless a replica is left out."""
        self.fork()
        if not all(valid_R):
            members = [replica for replica, valid in enumerate(valid_R) if valid]
            _copy(self._base, self._params)
            self._interpolate(
                [
                    sum(self._rate_multiplier(replica, group) for replica in members) / len(members)
                    for group in self._all_groups()
                ]
            )
            for param in self._params:
                if param in self._offsets:
                    own = [self._offsets[param][replica] for replica in members]
                    param.add_(torch.stack(own).mean(dim=0))
        self.reset()

    def finite(self, device: torch.device) -> torch.Tensor:
        """Points of one line are finite together."""
        self.fork()
        return tensors.all_finite([*self._params, *self._sync], device).expand(self._num_replicas)

    def _all_groups(self) -> range:
        return range(len(self._optimizer.param_groups))

    def _interpolate(self, multipliers: Sequence[float]) -> None:
        for group, multiplier in enumerate(multipliers):
            members = [i for i, own in enumerate(self._groups) if own == group]
            if not members:
                continue
            params = [self._params[i] for i in members]
            base = [self._base[i] for i in members]
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
        self._copies: list[list[torch.Tensor]] = []
        self._states: list[defaultdict[torch.Tensor, Any]] = []
        self._base: list[torch.Tensor] = []
        self._base_is_kept = False

    def _fork(self) -> None:
        self._base = [param.detach().clone() for param in self._params]
        self._copies = [
            [self._start(param, replica) for param in self._params]
            for replica in range(self._num_replicas)
        ]
        self._states = [_clone_state(self._optimizer) for _ in range(self._num_replicas)]
        self._base_is_kept = False

    def _start(self, param: torch.Tensor, replica: int) -> torch.Tensor:
        start = param.detach().clone()
        return start.add_(self._offsets[param][replica]) if param in self._offsets else start

    def load(self, replica: int) -> None:
        """A copy in."""
        self.fork()
        if not self._base_is_kept:
            _copy(self._base, self._params)
            self._base_is_kept = True
        _copy(self._params, self._copies[replica])

    def unload(self) -> None:
        """The base point back in."""
        _copy(self._params, self._base)
        self._base_is_kept = False

    def after_step(self) -> None:
        """Take each replica's own step, with its values and its state and the shared gradient."""
        optimizer = self._optimizer
        _copy(self._base, self._params)
        own_state = optimizer.state
        try:
            for replica in range(self._num_replicas):
                _copy(self._params, self._copies[replica])
                optimizer.state = self._states[replica]
                self._activate(replica)
                _step_without_hooks(optimizer)
                _copy(self._copies[replica], self._params)
        finally:
            optimizer.state = own_state
            self._activate(None)
            _copy(self._params, self._base)

    def merge_(self, valid_R: Sequence[bool], *, include_state: bool) -> None:
        """Mean parameters into the base point, and mean state where replicas differ in it."""
        self.fork()
        members = [replica for replica, valid in enumerate(valid_R) if valid]
        for index, param in enumerate(self._params):
            tensors.mean_(param, [self._copies[replica][index] for replica in members])
        if include_state:
            for param in self._params:
                self._merge_state(param, members)
        self.reset()

    def _merge_state(self, param: torch.Tensor, members: Sequence[int]) -> None:
        for name in optimizers.averaged_state(self._optimizer, param):
            own = [self._states[replica][param][name] for replica in members]
            tensors.mean_(self._optimizer.state[param][name], own)

    def finite(self, device: torch.device) -> torch.Tensor:
        """Each replica's own parameters."""
        self.fork()
        return torch.stack([tensors.all_finite(own, device) for own in self._copies])


def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def _clone_state(optimizer: torch.optim.Optimizer) -> defaultdict[torch.Tensor, Any]:
    state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
    for param, entries in optimizer.state.items():
        state[param] = {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in entries.items()
        }
    return state


def _step_without_hooks(optimizer: torch.optim.Optimizer) -> None:
    """The class's own step: hooks see one step of the user's, however many replicas follow it."""
    step = type(optimizer).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__  # type: ignore[attr-defined]  # set by torch's own wrapper
    step(optimizer)
