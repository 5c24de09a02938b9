"""The average of a whole selection, kind by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hdet.converge.buckets import average_
from hdet.converge.selection import Selection

if TYPE_CHECKING:
    from hdet.replicas.base import AbstractReplicas


def converge_(
    selection: Selection,
    replicas: AbstractReplicas,
    valid_R: Sequence[bool],
    *,
    include_state: bool,
) -> None:
    """Eq. 3: theta_r <- mean of theta over the valid replicas, on every replica, in place.

    Args:
        selection: the tensors that live in this process.
        replicas: who takes part.
        valid_R: which replicas count; the others receive the mean.
        include_state: whether the optimiser's state is averaged as well.
    """
    if replicas.num_local < replicas.num_replicas:
        own = replicas.replica or 0
        weight, total = int(valid_R[own]), sum(valid_R)
        parameters = [*selection.parameters, *(selection.state if include_state else ())]
        average_(parameters, replicas.all_reduce, weight=weight, total=total)
        # Running statistics and constant tables come back bit for bit where they are equal.
        average_(selection.buffers, replicas.all_reduce, weight=weight, total=total, wide=True)
        is_source = own == list(valid_R).index(True)
        average_(selection.copied, replicas.all_reduce, weight=int(is_source), total=1)
    replicas.merge_(valid_R, include_state=include_state)


def share_(
    members: Sequence[torch.Tensor],
    replicas: AbstractReplicas,
    valid_R: Sequence[bool],
    device: torch.device,
) -> None:
    """The mean of further tensors over the valid replicas of several processes, in place.

    Equal ones come back bit for bit. What does not lie on ``device``, the parameters' own, travels
    through it one tensor at a time: not every process group reaches the host.
    """
    if replicas.num_local == replicas.num_replicas:
        return
    weight, total = int(valid_R[replicas.replica or 0]), sum(valid_R)
    near = [member for member in members if member.device == device]
    average_(near, replicas.all_reduce, weight=weight, total=total, wide=True)
    for member in members:
        if member.device != device:
            staged = member.to(device)
            average_([staged], replicas.all_reduce, weight=weight, total=total, wide=True)
            member.copy_(staged)
