"""N replicas in one process, on one device, without a launcher.

The module and the optimiser that the user holds are the *base point*: the replica with multiplier
1, which with shared gradients is also the mean of all. `load` swaps replica r's parameters in for
its micro-batch and `unload` brings the base point back. How the other replicas are held is the
storage's affair (`hdet.replicas.storage`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hdet import checks, optimizers, tensors
from hdet.errors import UsageError
from hdet.optimizers import weak_hook
from hdet.replicas.base import AbstractReplicas, Noise
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

    Args:
        num_replicas: N, at least 1.
        exact: True gives the trajectory of N processes under DDP, to rounding, with any optimiser.
            False always holds two copies: with weight decay, a replica is then off by
            O((rate * weight_decay * cycle_steps)^2) of its own size within a cycle
            (``docs/method.md`` has measured figures).
    """

    def __init__(self, num_replicas: int, *, exact: bool = True) -> None:
        self._num_replicas = checks.integer("num_replicas", num_replicas, minimum=1)
        self.exact = checks.boolean("exact", exact)
        self._offsets: Offsets = {}
        self._storage: AbstractStorage | None = None
        self._buffers: _Buffers | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._loaded: int | None = None

    def __repr__(self) -> str:
        return f"VirtualReplicas({self.num_replicas}, exact={self.exact})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._optimizer is not None:  # a pickled optimiser comes back without its hooks
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

    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        *,
        rate_multiplier: Callable[[int, int], float],
        activate: Callable[[int | None], None],
        only_rates: bool,
    ) -> None:
        """Choose how to hold the replicas, and follow the optimiser's steps."""
        if self._num_replicas == 1:
            return
        if self._optimizer is not None:
            raise UsageError(
                "replicas=VirtualReplicas(...) already drives another scheduler, got it a second "
                "time; make one VirtualReplicas for each scheduler"
            )
        linear = only_rates and (optimizers.update_is_linear_in_rate(optimizer) or not self.exact)
        if linear:
            self._storage = LineStorage(
                optimizer, self._num_replicas, self._offsets, rate_multiplier
            )
        else:
            self._storage = CopiesStorage(optimizer, self._num_replicas, self._offsets, activate)
        if model is not None:
            self._buffers = _Buffers(model, self._num_replicas)
        self._optimizer = optimizer
        self._register_hooks(optimizer)

    def gather(self, rows_LK: torch.Tensor) -> torch.Tensor:
        """All rows are here already."""
        return rows_LK.cpu().to(torch.float64)

    def gather_objects(self, item: Any) -> list[Any]:
        """One process, one object."""
        return [item]

    def all_reduce(self, flat: torch.Tensor) -> _Done:
        """A sum over one process."""
        return _Done()

    def finite(self, members: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
        """Each replica's own parameters."""
        if self._storage is None:
            return super().finite(members, device)
        return self._storage.finite(device)

    def load(self, replica: int) -> None:
        """Swap replica's parameters and buffers in, in place."""
        if self._storage is None:
            return
        with torch.no_grad():
            self._storage.load(replica)
            if self._buffers is not None:
                self._buffers.load(replica)
        self._loaded = replica

    def unload(self) -> None:
        """Bring the base point back."""
        if self._storage is None or self._loaded is None:
            return
        with torch.no_grad():
            self._storage.unload()
            if self._buffers is not None:
                self._buffers.unload()
        self._loaded = None

    def merge_(self, valid_R: Sequence[bool], *, include_state: bool) -> None:
        """Set the base point to the mean of the valid replicas; all start from it again."""
        if self._storage is None:
            return
        with torch.no_grad():
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
        if self._storage is not None:
            self._storage.reset()

    def _register_hooks(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_pre_hook(weak_hook(self._before_step))
        optimizer.register_step_post_hook(weak_hook(self._after_step))
        optimizer.register_load_state_dict_post_hook(weak_hook(self._after_load))

    def _before_step(self, _: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._loaded is not None:
            raise UsageError(
                f"optimizer.step() was called inside fan_out(), at replica {self._loaded} of "
                f"{self.num_replicas}; call it once, after the loop"
            )
        if isinstance(self._storage, CopiesStorage) and (args[1:] or kwargs.get("closure")):
            raise UsageError(
                "optimizer.step(closure) cannot run on virtual replicas with this optimiser; "
                "compute the loss in the fan_out() loop and call optimizer.step()"
            )
        if self._storage is not None:
            self._storage.before_step()

    def _after_step(self, *_: Any) -> None:
        if self._storage is not None:
            with torch.no_grad():
                self._storage.after_step()

    def _after_load(self, _: torch.optim.Optimizer) -> None:
        if self._storage is not None:
            self._storage.reset()


class _Buffers:
    """Each replica's own buffers: running statistics drift apart between converges."""

    def __init__(self, model: torch.nn.Module, num_replicas: int) -> None:
        self._model = model
        self._num_replicas = num_replicas
        self._copies: list[list[torch.Tensor]] | None = None
        self._loaded: int | None = None

    def load(self, replica: int) -> None:
        """Keep what the last replica's forward pass left, then swap this one's in."""
        live = list(self._model.buffers())
        if self._copies is None:
            self._copies = [[b.clone() for b in live] for _ in range(self._num_replicas)]
        self._keep(live)
        for buffer, copy in zip(live, self._copies[replica], strict=True):
            buffer.copy_(copy)
        self._loaded = replica

    def unload(self) -> None:
        """Show the mean of the replicas outside the loop."""
        self._keep(list(self._model.buffers()))
        self._show_mean(range(self._num_replicas))

    def merge_(self, valid_R: Sequence[bool]) -> None:
        """The mean of those that count; all start from it again."""
        self._show_mean([replica for replica, valid in enumerate(valid_R) if valid])
        self._copies = None

    def _keep(self, live: list[torch.Tensor]) -> None:
        if self._loaded is not None and self._copies is not None:
            for copy, buffer in zip(self._copies[self._loaded], live, strict=True):
                copy.copy_(buffer)
        self._loaded = None

    def _show_mean(self, members: Sequence[int]) -> None:
        if self._copies is None:
            return
        for index, buffer in enumerate(self._model.buffers()):
            own = [self._copies[replica][index] for replica in members]
            if tensors.is_averaged(buffer):
                tensors.mean_(buffer, own, wide=True)
            else:
                buffer.copy_(own[0])
