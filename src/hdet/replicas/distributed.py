"""Replicas that are processes: a process group, or one dimension of a device mesh.

The only module that touches ``torch.distributed``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hdet import checks, optimizers
from hdet.converge.buckets import Waitable
from hdet.errors import InvalidTypeError, InvalidValueError, UsageError
from hdet.replicas.attendance import lost
from hdet.replicas.base import AbstractReplicas, Noise, Steering


def process_group_is_ready() -> bool:
    """Whether there is a default process group to use."""
    return dist.is_available() and dist.is_initialized()


def process_group_size() -> int:
    """The number of processes in the default group, 1 without one."""
    return dist.get_world_size() if process_group_is_ready() else 1


class DistributedReplicas(AbstractReplicas):
    """Each process of a group is one replica; DDP or HSDP shares the gradients.

    Args:
        process_group: the replicas; None means the default group.
        mesh: instead of a group, a one-dimensional device mesh such as
            ``device_mesh["replicate"]`` of an HSDP mesh.
        gradients: ``"shared"`` (Eq. 2): every replica applies the all-reduced gradient, as DDP and
            HSDP arrange. ``"local"``: each replica applies its own, and converge averages the
            optimiser's state as well.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        mesh: DeviceMesh | None = None,
        gradients: str = "shared",
    ) -> None:
        if not process_group_is_ready():
            raise UsageError(
                "replicas=DistributedReplicas() needs a process group and none is initialised; "
                "call torch.distributed.init_process_group() first, or pass "
                "replicas=hdet.VirtualReplicas(n) to hold the replicas in one process"
            )
        self._gradients = checks.one_of("gradients", gradients, ("shared", "local"))
        self._group = _group_of(process_group, mesh)
        self._params: list[torch.Tensor] = []
        self._perturbed = False
        self._messages = 0

    def __repr__(self) -> str:
        return f"DistributedReplicas({self.num_replicas} processes, gradients={self.gradients!r})"

    def __getstate__(self) -> dict[str, Any]:
        if self._group is not None:
            raise InvalidTypeError(
                "replicas over a process group of their own cannot be pickled or copied, got a "
                f"group of {self.num_replicas}; build the scheduler again and load its state_dict()"
            )
        return self.__dict__

    @property
    def num_replicas(self) -> int:
        """The size of the group."""
        _check_group(self._group)
        return dist.get_world_size(self._group)

    @property
    def replica(self) -> int:
        """This process's rank in the group; asked anew each time, so that no state holds a rank."""
        _check_group(self._group)
        return dist.get_rank(self._group)

    @property
    def gradients(self) -> str:
        """How the gradients reach the replicas."""
        return self._gradients

    @property
    def perturbed(self) -> bool:
        """Whether `perturb_` has taken the replicas apart since the last converge."""
        return self._perturbed

    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        steering: Steering,
        owner: object,
    ) -> None:
        """Check that parameters are not sharded over the replicas."""
        del steering, owner
        self.know(optimizer, model)

    def know(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None) -> None:
        """The part of `attach` that messages need."""
        self._params = optimizers.parameters(optimizer)
        _check_whole(optimizer, model)
        ranks = set(dist.get_process_group_ranks(self._group or dist.group.WORLD))
        for param in self._params:
            _check_not_sharded_over(ranks, param)

    def reset(self) -> None:
        """Nothing is kept but in the model and the optimiser; a warm start outlives a jump."""

    def gather(self, rows_LK: torch.Tensor) -> torch.Tensor:
        """One all-gather of one small tensor; the only wait of a cycle."""
        row_K = rows_LK.reshape(-1)
        rows = [torch.empty_like(row_K) for _ in range(self.num_replicas)]
        with self._naming_who_is_lost():
            dist.all_gather(rows, row_K, group=self._group)
            return torch.stack(rows).cpu().to(torch.float64)

    def gather_objects(self, item: Any) -> list[Any]:
        """One object from each process, as JSON, through tensors where the parameters live.

        `torch.distributed.all_gather_object` would use the current CUDA device, which scripts that
        never call ``torch.cuda.set_device`` share between ranks; and it unpickles what it receives.
        """
        return [json.loads(text) for text in self.gather_bytes(json.dumps(item).encode())]

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Two all-gathers: of the lengths, and of the bytes, all as long as the longest."""
        device = self._params[0].device
        own_size = torch.tensor([len(data)], device=device)
        sizes = [torch.empty_like(own_size) for _ in range(self.num_replicas)]
        with self._naming_who_is_lost():
            dist.all_gather(sizes, own_size, group=self._group)
            width = max(max(int(size) for size in sizes), 1)
            padded = torch.frombuffer(bytearray(data.ljust(width, b"\0")), dtype=torch.uint8)
            own = padded.to(device)
            found = [torch.empty_like(own) for _ in range(self.num_replicas)]
            dist.all_gather(found, own, group=self._group)
        return [
            ctypes.string_at(part.cpu().data_ptr(), int(size))
            for part, size in zip(found, sizes, strict=True)
        ]

    def all_reduce(self, flat: torch.Tensor) -> Waitable:
        """Start an in-place sum over the group."""
        with self._naming_who_is_lost():
            return _Named(dist.all_reduce(flat, group=self._group, async_op=True), self)

    @contextlib.contextmanager
    def _naming_who_is_lost(self) -> Iterator[None]:
        """A message that fails says who did not come, within the group's own time limit."""
        self._messages += 1
        with self.naming(self._messages):
            yield

    @contextlib.contextmanager
    def naming(self, message: int) -> Iterator[None]:
        """The same, of a message that was begun before."""
        try:
            yield
        except RuntimeError as error:
            who = dist.get_process_group_ranks(self._group or dist.group.WORLD)
            raise lost(error, who, self.replica, message, _store()) from error

    def load(self, replica: int) -> None:
        """Refuse: the loop over replicas is the launcher's."""
        raise UsageError(
            f"fan_out() splits a batch over virtual replicas, and here each of {self.num_replicas} "
            "processes is a replica; feed every process its own batch, as without hdet"
        )

    def unload(self) -> None:
        """Nothing was put in place."""

    def merge_(self, valid_R: Sequence[bool], *, include_state: bool) -> None:
        """One replica lives here, and it has been averaged with the others."""
        self._perturbed = False

    def perturb_(self, params: Sequence[torch.Tensor], noise: Noise) -> None:
        """Add this replica's noise."""
        for index, param in enumerate(params):
            param.add_(noise(self.replica, index, param))
        self._perturbed = self.num_replicas > 1


class _Named:
    """A sum under way whose failure names those who did not come."""

    def __init__(self, work: Any, replicas: DistributedReplicas) -> None:
        self._work = work
        self._replicas = replicas
        self._message = replicas._messages

    def wait(self) -> None:
        """Return once the result may be used."""
        with self._replicas.naming(self._message):
            self._work.wait()


def _store() -> Any:
    """What the ranks met at. PyTorch has no public way to ask for it."""
    try:
        return dist.distributed_c10d._get_default_store()
    except (AttributeError, ValueError, RuntimeError):
        return None


def _check_group(group: dist.ProcessGroup | None) -> None:
    """Raise if it has been destroyed since."""
    try:
        dist.get_rank(group)
    except (ValueError, RuntimeError):
        raise UsageError(
            "replicas must keep their process group, got one that has been destroyed; call "
            "destroy_process_group() after the last step() and converge()"
        ) from None


def _group_of(process_group: Any, mesh: DeviceMesh | None) -> dist.ProcessGroup | None:
    if mesh is not None:
        checks.instance("mesh", mesh, DeviceMesh, remedy='pass device_mesh["replicate"]')
        if process_group is not None:
            raise InvalidValueError(
                "process_group and mesh must not both be given, got both; leave one out"
            )
        if mesh.ndim != 1:
            raise InvalidValueError(
                f"mesh must have one dimension, got {mesh.ndim} {mesh.mesh_dim_names}; "
                'pass the replicate dimension alone: mesh=device_mesh["replicate"]'
            )
        mesh_group: dist.ProcessGroup = mesh.get_group()
        return mesh_group
    if process_group is None:
        return None
    if process_group == dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidValueError(
            f"process_group must contain this process, got a group without rank {dist.get_rank()}; "
            "build the scheduler with the group that this rank is in"
        )
    group: dist.ProcessGroup = checks.instance(
        "process_group",
        process_group,
        dist.ProcessGroup,
        remedy="pass what torch.distributed.new_group() returned, or None",
    )
    return group


def _check_whole(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """FSDP1 and ZeRO hide which part of the model a rank holds: refuse them by name."""
    members = [optimizer, *(() if model is None else model.modules())]
    sharding = {type(member).__name__ for member in members}
    sharding &= {"FullyShardedDataParallel", "ZeroRedundancyOptimizer"}
    # The mark that FSDP1 leaves on flat parameters and on the original ones that view into them.
    if any(hasattr(param, "_fsdp_flattened") for param in optimizers.parameters(optimizer)):
        sharding.add("FSDP parameters")
    if sharding:
        raise InvalidValueError(
            f"replicas must hold whole copies of the model, got {sorted(sharding)}; use DDP, or "
            "fully_shard() on a 2-D mesh (HSDP) with "
            'replicas=hdet.DistributedReplicas(mesh=device_mesh["replicate"])'
        )


def _check_not_sharded_over(ranks: set[int], param: torch.Tensor) -> None:
    """A shard is another part of the model, and averaging parts would destroy it."""
    mesh = getattr(param, "device_mesh", None)
    if mesh is None:
        return
    for dim, placement in enumerate(param.placements):  # type: ignore[attr-defined]  # a DTensor
        if placement.is_replicate():
            continue
        shared = ranks & set(dist.get_process_group_ranks(mesh.get_group(dim)))
        if len(shared) > 1:
            raise InvalidValueError(
                f"replicas must hold whole copies of the model, got parameters sharded over ranks "
                f"{sorted(shared)}; use HSDP, a 2-D mesh (replicate x shard), and pass "
                'replicas=hdet.DistributedReplicas(mesh=device_mesh["replicate"])'
            )
