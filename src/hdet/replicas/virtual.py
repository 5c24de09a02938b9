"""N replicas in one process, on one device, without a launcher.

The module and the optimiser that the user holds are the *base point*: the replica with multiplier
1, which with shared gradients is also the mean of all. `load` swaps replica r's parameters in for
its micro-batch and `unload` brings the base point back. How the other replicas are held is the
storage's affair (`hdet.replicas.storage`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from hdet import checks, optimizers
from hdet.errors import UsageError
from hdet.ownership import WeakMethod
from hdet.replicas.base import AbstractReplicas, Noise, Steering
from hdet.replicas.buffers import ReplicaBuffers
from hdet.replicas.storage import AbstractStorage, CopiesStorage, LineStorage, Offsets


class _Done:
    """A sum over one process is there at once."""

    def wait(self) -> None:
        """Nothing to wait for."""


class VirtualReplicas(AbstractReplicas):
    """``num_replicas`` replicas with shared gradients in this process.

    Memory beyond the model's own: two parameter copies where the update is linear in the rate (SGD,
    Adam and their relatives without weight decay); with ``exact=True``, one copy of parameters and
    optimiser state for each replica elsewhere (AdamW, coupled L2, optimisers we do not know), and
    an optimiser step for each.

    Change parameters between steps by the optimiser alone. What else writes into them there (weight
    clamping, a checkpoint) is taken up as the new value of all replicas.

    Args:
        num_replicas: N, at least 1.
        exact: True gives the trajectory of N processes under DDP, to rounding. False always holds
            two copies: with weight decay a replica is then off by a little, of second order in
            rate * weight_decay * cycle_steps (``docs/performance.md`` has measured figures); with
            Rprop, ASGD or Adafactor by more.
    """

    def __init__(self, num_replicas: int, *, exact: bool = True) -> None:
        self._num_replicas = checks.integer(
            "num_replicas", num_replicas, minimum=1, remedy="the paper uses 8"
        )
        self.exact = checks.boolean("exact", exact)
        self._offsets: Offsets = {}
        self._storage: AbstractStorage | None = None
        self._buffers: ReplicaBuffers | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._steering: Steering | None = None
        self._owner: weakref.ref[Any] | None = None
        self._handles: list[Any] = []
        self._loaded: int | None = None
        self._stepping = 0

    def __repr__(self) -> str:
        return f"VirtualReplicas({self.num_replicas}, exact={self.exact})"

    def __getstate__(self) -> dict[str, Any]:
        # Hooks and the weak reference are made anew: a pickled optimiser comes without its hooks.
        return {**self.__dict__, "_handles": [], "_owner": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._optimizer is not None:
            self._register_hooks(self._optimizer)

    @property
    def num_replicas(self) -> int:
        """N."""
        return self._num_replicas

    @property
    def replica(self) -> int | None:
        """None: all replicas are here. A single one is replica 0."""
        return 0 if self._num_replicas == 1 else None

    @property
    def gradients(self) -> str:
        """Shared: the micro-batches' gradients accumulate into their mean."""
        return "shared"

    @property
    def perturbed(self) -> bool:
        """Whether a warm start's noise has not been averaged away yet."""
        return bool(self._offsets)

    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        steering: Steering,
        owner: object,
    ) -> None:
        """Choose how to hold the replicas, and follow the optimiser's steps."""
        if self._num_replicas == 1:
            return
        if self._owner is not None and self._owner() is not None:
            raise UsageError(
                "replicas=VirtualReplicas(...) already drives another scheduler, got it a second "
                "time; make one VirtualReplicas for each scheduler"
            )
        for handle in self._handles:
            handle.remove()
        self._optimizer = optimizer
        self._steering = steering
        self._owner = weakref.ref(owner)
        self._storage = None
        self._choose_storage()
        self._buffers = None
        if model is not None and (steering.explores or self._offsets):
            self._buffers = ReplicaBuffers(model, self._num_replicas)
        self._register_hooks(optimizer)

    def reset(self) -> None:
        """Start all replicas from the base point, wherever it is when they are next needed."""
        if self._storage is not None:
            self._storage.reset()
        if self._buffers is not None:
            self._buffers.reset()

    def gather(self, rows_LK: torch.Tensor) -> torch.Tensor:
        """All rows are here already."""
        return rows_LK.cpu().to(torch.float64)

    def gather_objects(self, item: Any) -> list[Any]:
        """One process, one object."""
        return [item]

    def all_reduce(self, flat: torch.Tensor) -> _Done:
        """A sum over one process."""
        del flat
        return _Done()

    def finite(self, members: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
        """Each replica's own parameters."""
        if self._storage is None or not self._storage.forked:
            return super().finite(members, device)
        return self._storage.finite(device)

    def load(self, replica: int) -> None:
        """Swap replica's parameters and buffers in, in place."""
        self._stepping = 0
        self._choose_storage()
        with torch.no_grad():
            if self._storage is not None and self._is_steered():
                self._storage.load(replica)
            if self._buffers is not None:
                self._buffers.load(replica)
        self._loaded = replica

    def unload(self) -> None:
        """Bring the base point back."""
        if self._loaded is None:
            return
        with torch.no_grad():
            if self._storage is not None:
                self._storage.unload()
            if self._buffers is not None:
                self._buffers.unload()
        self._loaded = None

    def merge_(self, valid_R: Sequence[bool], *, include_state: bool) -> None:
        """Set the base point to the mean of the valid replicas; all start from it again."""
        with torch.no_grad():
            if self._storage is not None and (self._storage.forked or self._offsets):
                self._storage.fork()
                self._storage.merge_(valid_R, include_state=include_state)
            if self._buffers is not None:
                self._buffers.merge_(valid_R)
        self._offsets.clear()

    def perturb_(self, params: Sequence[torch.Tensor], noise: Noise) -> None:
        """Move the base point by the mean noise and remember how far each replica is from it.

        Until the first converge this holds one copy of the parameters for each replica.
        """
        for index, param in enumerate(params):
            noises = [noise(replica, index, param) for replica in range(self.num_replicas)]
            mean = torch.stack(noises).mean(dim=0)
            param.add_(mean)
            if self.num_replicas > 1:
                self._offsets[param] = [own - mean for own in noises]
        self.reset()

    def _choose_storage(self) -> None:
        """Two copies where that is enough; asked anew in each cycle, since groups can change."""
        optimizer, steering = self._optimizer, self._steering
        if optimizer is None or steering is None:
            return
        if self._storage is not None and self._storage.forked:
            return
        on_a_line = optimizers.update_is_linear_in_rate(optimizer) or not self.exact
        if not steering.explores and not self._offsets:
            self._storage = None
        elif steering.only_rates and on_a_line:
            if not isinstance(self._storage, LineStorage):
                self._storage = LineStorage(
                    optimizer, self._num_replicas, self._offsets, steering.rate_multiplier
                )
        elif not isinstance(self._storage, CopiesStorage):
            self._storage = CopiesStorage(
                optimizer, self._num_replicas, self._offsets, steering.activate
            )

    def _is_steered(self) -> bool:
        return self._steering is not None and bool(self._steering.in_charge())

    def _register_hooks(self, optimizer: torch.optim.Optimizer) -> None:
        self._handles = [
            optimizer.register_step_pre_hook(WeakMethod(self._before_step)),
            optimizer.register_step_post_hook(WeakMethod(self._after_step)),
            optimizer.register_load_state_dict_post_hook(WeakMethod(self._after_load)),
        ]

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._stepping > 0:  # a subclass whose step() calls its parent's, or a replica's own
            self._stepping += 1
            return
        if self._loaded is not None:
            raise UsageError(
                f"optimizer.step() was called inside fan_out(), at replica {self._loaded} of "
                f"{self.num_replicas}; call it once, after the loop"
            )
        self._choose_storage()
        if self._storage is not None:
            self._prepare(optimizer, args, kwargs)
        self._stepping = 1

    def _prepare(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        assert self._storage is not None
        if kwargs.get("closure", args[1] if len(args) > 1 else None) is not None:
            raise UsageError(
                "optimizer.step(closure) would run the closure on the base point alone; compute "
                "the loss in the fan_out() loop and call optimizer.step()"
            )
        if self._is_steered():
            self._storage.fork()
        elif self._storage.forked:
            # Somebody else sets the rates now, so nothing is explored: the replicas become one.
            everyone = [True] * self._num_replicas
            depends = not optimizers.state_ignores_parameters(optimizer)
            self.merge_(everyone, include_state=depends)

    def _after_step(self, *_: Any) -> None:
        if self._stepping == 1 and self._storage is not None and self._storage.forked:
            with torch.no_grad():
                self._storage.after_step()
        self._stepping = max(self._stepping - 1, 0)

    def _after_load(self, _: torch.optim.Optimizer) -> None:
        self.reset()
