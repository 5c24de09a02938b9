"""Checkpoints and copies on processes."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hdet
from tests.one_parameter import one_parameter, scheduler_of
from tests.pool import Pool

pytestmark = pytest.mark.distributed


def resume_from_rank_0(rank: int, scheduler_first: bool) -> list[float]:
    """Rank 0's files, loaded everywhere, as most scripts do."""
    _, optimizer = one_parameter()
    scheduler = scheduler_of(optimizer)
    for _ in range(8):
        optimizer.step()
        scheduler.step(1.0)
    before = [group["lr"] for group in optimizer.param_groups]
    files: list[Any] = [None]
    if rank == 0:
        buffer = io.BytesIO()
        torch.save((optimizer.state_dict(), scheduler.state_dict()), buffer)
        files = [buffer.getvalue()]
    dist.broadcast_object_list(files, src=0)
    optimizer_state, scheduler_state = torch.load(io.BytesIO(files[0]), weights_only=True)
    _, fresh = one_parameter()
    resumed = scheduler_of(fresh)
    loads = [
        lambda: resumed.load_state_dict(scheduler_state),
        lambda: fresh.load_state_dict(optimizer_state),
    ]
    for load in loads if scheduler_first else loads[::-1]:
        load()
    after = [group["lr"] for group in fresh.param_groups]
    assert resumed.get_last_lr() == before
    return before + after


@pytest.mark.parametrize("scheduler_first", [True, False])
def test_rank_0s_checkpoint_gives_every_rank_its_own_rate(
    pool: Pool, scheduler_first: bool
) -> None:
    results = pool.run(resume_from_rank_0, 3, scheduler_first)
    for before, after in results:
        assert before == after
    assert len({before for before, _ in results}) == 3


def state_on_each_rank(rank: int) -> str:
    _, optimizer = one_parameter()
    scheduler = scheduler_of(optimizer, auto_lr=True, warmup_steps=4)
    for _ in range(12):
        optimizer.step()
        scheduler.step(1.0 + rank)
    return repr(scheduler.state_dict())


def test_the_state_is_the_same_on_every_replica(pool: Pool) -> None:
    assert len(set(pool.run(state_on_each_rank, 4))) == 1


def pickled(rank: int) -> tuple[bool, str]:
    _, optimizer = one_parameter()
    scheduler = scheduler_of(optimizer)
    optimizer.step()
    scheduler.step(1.0)
    again = pickle.loads(pickle.dumps(scheduler))
    same = again.get_last_lr() == scheduler.get_last_lr() and again.ensemble.num_replicas == 2
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 123.0
    again.optimizer.load_state_dict(state)  # the hooks are back
    same = same and again.optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0]
    group = dist.new_group([0, 1])
    own = scheduler_of(one_parameter()[1], replicas=hdet.DistributedReplicas(group))
    try:
        pickle.dumps(own)
    except hdet.HDETError as error:
        return same, f"{rank}: {error}"
    return same, "no error"


def test_pickling_with_the_default_group_and_with_another(pool: Pool) -> None:
    for same, message in pool.run(pickled, 2):
        assert same
        assert "cannot be pickled" in message
