"""Replicas that are a process group, or a dimension of a device mesh."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import hdet
from tests.one_parameter import one_parameter, scheduler_of
from tests.pool import Pool

pytestmark = pytest.mark.distributed


def on_a_sub_group(rank: int) -> tuple[int, int, list[float]]:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    param, optimizer = one_parameter(float(rank))
    replicas = hdet.DistributedReplicas(groups[rank // 2])
    scheduler = scheduler_of(optimizer, cycle_steps=1, replicas=replicas)
    optimizer.step()
    scheduler.step(1.0)
    return replicas.num_replicas, replicas.replica, param.tolist()


def test_a_process_group_bounds_the_replicas(pool: Pool) -> None:
    results = pool.run(on_a_sub_group, 4)
    assert [r[:2] for r in results] == [(2, 0), (2, 1), (2, 0), (2, 1)]
    assert [r[2][0] for r in results] == [0.5, 0.5, 2.5, 2.5]


def foreign_group(rank: int) -> str:
    group = dist.new_group([0])
    try:
        hdet.DistributedReplicas(group)
    except hdet.HDETError as error:
        return str(error)
    return f"fine on {rank}"


def test_a_group_without_this_rank_is_refused(pool: Pool) -> None:
    first, second = pool.run(foreign_group, 2)
    assert first == "fine on 0"
    assert "must contain this process" in second


def on_a_mesh(rank: int) -> tuple[list[float], list[str]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    messages = []
    for bad in ({"mesh": mesh}, {"mesh": mesh["shard"], "process_group": dist.group.WORLD}):
        try:
            hdet.DistributedReplicas(**bad)
        except hdet.HDETError as error:
            messages.append(str(error))
    param, optimizer = one_parameter(float(rank))
    replicas = hdet.DistributedReplicas(mesh=mesh["replicate"])
    scheduler = scheduler_of(optimizer, cycle_steps=1, replicas=replicas)
    optimizer.step()
    scheduler.step(1.0)
    return param.tolist(), messages


def test_a_mesh_dimension_is_the_replicas(pool: Pool) -> None:
    results = pool.run(on_a_mesh, 4)
    assert [r[0][0] for r in results] == [1.0, 2.0, 1.0, 2.0]
    for _, (two_dimensional, both) in results:
        assert 'mesh=device_mesh["replicate"]' in two_dimensional
        assert "got both" in both


def sharded(rank: int) -> tuple[str, list[float]]:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    full = torch.arange(4.0)
    param = nn.Parameter(distribute_tensor(full, mesh["shard"], [Shard(0)]))
    optimizer = torch.optim.SGD([param], lr=0.1)
    try:
        scheduler_of(optimizer)
        message = "no error"
    except hdet.HDETError as error:
        message = str(error)
    # Along the other dimension every shard has its replica.
    scheduler = scheduler_of(
        optimizer, cycle_steps=1, replicas=hdet.DistributedReplicas(mesh=mesh["replicate"])
    )
    with torch.no_grad():
        param.to_local().add_(float(rank // 2))
    scheduler.ensemble.advance(1.0)
    return message, param.to_local().tolist()


def test_parameters_sharded_over_the_replicas_are_refused_and_hsdp_is_not(pool: Pool) -> None:
    results = pool.run(sharded, 4)
    for message, _ in results:
        assert "sharded over ranks" in message
        assert "HSDP" in message
    assert [own for _, own in results] == [[0.5, 1.5], [2.5, 3.5]] * 2
