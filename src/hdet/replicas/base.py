"""What every set of replicas does: say who is here, gather what each measured, and become one."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from hdet import tensors
from hdet.converge.buckets import Waitable

Noise = Callable[[int, int, torch.Tensor], torch.Tensor]
"""(replica, index of the parameter, parameter) -> its noise."""


class Steering(NamedTuple):
    """What replicas ask of the ensemble that steers them, without keeping it alive."""

    rate_multiplier: Callable[[int, int], float]
    """(replica, parameter group) -> rho of this cycle."""
    activate: Callable[[int | None], None]
    """Write a replica's values into the optimiser; None writes the base values."""
    in_charge: Callable[[], bool]
    """Whether the optimiser holds the values that the ensemble wrote. Not so while another
    scheduler of a SequentialLR, or a user's own hand, sets them: then nothing is explored."""
    only_rates: bool
    """Whether nothing but learning rates differs between the replicas."""
    explores: bool
    """Whether anything differs between the replicas."""


class AbstractReplicas(abc.ABC):
    """N replicas, of which ``num_local`` live in this process."""

    @property
    @abc.abstractmethod
    def num_replicas(self) -> int:
        """N."""

    @property
    @abc.abstractmethod
    def replica(self) -> int | None:
        """Which replica this process is; None if it holds all of them."""

    @property
    def num_local(self) -> int:
        """How many replicas live in this process."""
        return self.num_replicas if self.replica is None else 1

    @property
    @abc.abstractmethod
    def gradients(self) -> str:
        """``"shared"`` if all replicas apply the mean gradient, ``"local"`` if each its own."""

    @property
    @abc.abstractmethod
    def perturbed(self) -> bool:
        """Whether `perturb_` has taken the replicas apart since the last converge."""

    @abc.abstractmethod
    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        steering: Steering,
        owner: object,
    ) -> None:
        """Get to know the training, once, before its first step."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Forget what was kept of the replicas: a checkpoint was loaded."""

    @abc.abstractmethod
    def gather(self, rows_LK: torch.Tensor) -> torch.Tensor:
        """Each replica's row, float64 ``[R, K]`` on the CPU, from this process's ``[L, K]``."""

    @abc.abstractmethod
    def gather_objects(self, item: Any) -> list[Any]:
        """One plain object from each process; for rare occasions such as reporting a mismatch."""

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Some bytes from each process, of any length; for rare occasions such as a checkpoint."""
        return [bytes.fromhex(text) for text in self.gather_objects(data.hex())]

    @abc.abstractmethod
    def all_reduce(self, flat: torch.Tensor) -> Waitable:
        """Start an in-place sum over the processes."""

    def finite(self, members: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
        """Whether each local replica's parameters are finite, ``[L]``, not waited for."""
        return tensors.all_finite(members, device).expand(self.num_local)

    @abc.abstractmethod
    def load(self, replica: int) -> None:
        """Put a replica's parameters and buffers in place; a no-op where it is always in place."""

    @abc.abstractmethod
    def unload(self) -> None:
        """Put the base point back."""

    @abc.abstractmethod
    def merge_(self, valid_R: Sequence[bool], *, include_state: bool) -> None:
        """Make the replicas that live in this process one, leaving out those that are not valid."""

    @abc.abstractmethod
    def perturb_(self, params: Sequence[torch.Tensor], noise: Noise) -> None:
        """Add to each replica's parameters its own noise."""
