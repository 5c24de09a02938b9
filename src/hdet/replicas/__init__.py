"""[4] Who takes part: a process group or mesh dimension, or virtual replicas in one process."""

from __future__ import annotations

import os
from typing import Any

import torch

from hdet import checks
from hdet.errors import UsageError, warn
from hdet.replicas.base import AbstractReplicas
from hdet.replicas.distributed import (
    DistributedReplicas,
    process_group_is_ready,
    process_group_size,
)
from hdet.replicas.virtual import VirtualReplicas

__all__ = [
    "AbstractReplicas",
    "DistributedReplicas",
    "VirtualReplicas",
    "everyone",
    "resolve",
]


def resolve(replicas: Any, *, explores: bool, controls: bool) -> AbstractReplicas:
    """``replicas`` itself; for None the default process group, or else a single replica.

    Args:
        replicas: what the user passed.
        explores: whether there is a spread, which needs more than one replica: a forgotten launcher
            must not pass in silence.
        controls: whether a controller reads the replicas' losses.
    """
    if replicas is None and process_group_is_ready():
        replicas = DistributedReplicas()
    elif replicas is None:
        world_size = os.environ.get("WORLD_SIZE", "1")
        if explores and world_size not in ("", "1"):
            raise UsageError(
                f"replicas=None found no process group although WORLD_SIZE is {world_size}; call "
                "torch.distributed.init_process_group() before building the scheduler"
            )
        replicas = VirtualReplicas(1)
    remedy = "pass hdet.DistributedReplicas(...), hdet.VirtualReplicas(n) or None"
    found: AbstractReplicas = checks.instance("replicas", replicas, AbstractReplicas, remedy=remedy)
    if controls and found.num_local > 1 and process_group_size() > 1:
        raise UsageError(
            "replicas=VirtualReplicas(n) cannot steer a run of several processes, got a process "
            f"group of {process_group_size()}, and each would follow its own losses alone; pass "
            "replicas=None to make every process a replica"
        )
    if explores and found.num_replicas == 1:
        warn(
            "spread_ratio has no effect with a single replica; launch several processes with "
            "torchrun, or pass replicas=hdet.VirtualReplicas(8) to hold them in this one"
        )
    return found


def everyone(replicas: AbstractReplicas, optimizer: torch.optim.Optimizer) -> AbstractReplicas:
    """The processes of the run: those of ``replicas``, or the default group around virtual ones."""
    if not isinstance(replicas, VirtualReplicas) or process_group_size() == 1:
        return replicas
    found = DistributedReplicas()
    found.know(optimizer)
    return found
