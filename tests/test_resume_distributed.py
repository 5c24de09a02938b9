"""Exact resume on processes, and through `torch.distributed.checkpoint`."""

from __future__ import annotations

import hashlib
import io
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import hdet
from tests import auto
from tests.pool import Pool
from tests.resumable import Run, S, through_a_file

pytestmark = pytest.mark.distributed


def digest(state: Any) -> str:
    """Of the bytes that a file would hold, tensors copied so that views do not show."""
    buffer = io.BytesIO()
    torch.save(_plain(state), buffer)
    return hashlib.sha256(repr(_plain(state)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {key: _plain(own) for key, own in value.items()}
    return [_plain(own) for own in value] if isinstance(value, list | tuple) else value


def from_rank_0(state: Any) -> Any:
    states = [state]
    dist.broadcast_object_list(states, src=0)
    return states[0]


def stopped_anywhere(rank: int, size: int, way: dict[str, Any], drop: bool) -> list[Any]:
    """For each step: the states' digest, whether the resumed run is the one that went on."""
    found = []
    for stop in range(1, S, 3) if not drop else [13]:
        whole = Run(num_replicas=size, rank=rank, **way)
        whole.train(range(stop))
        state = whole.save()
        shared = digest(state["scheduler"])
        loaded = from_rank_0(through_a_file(state))
        if drop:
            del loaded["scheduler"]["ensemble"]["cycle_so_far"]
        resumed = Run(num_replicas=size, rank=rank, **way)
        resumed.load(loaded)
        same = whole.train(range(stop, S)) == resumed.train(range(stop, S))
        found.append((stop, shared, same, torch.equal(whole.end(), resumed.end())))
    return found


@pytest.mark.parametrize(
    "way",
    [
        {"kind": "sgd"},
        {"kind": "adamw"},
        {"kind": "adamw", "general": True},
        {"kind": "sgd-coupled-decay"},
        {"kind": "sgd", "gradients": "local"},
    ],
    ids=lambda way: ", ".join(map(str, way.values())),
)
def test_stopped_anywhere_on_two_processes(pool: Pool, way: dict[str, Any]) -> None:
    first, second = pool.run(stopped_anywhere, 2, 2, way, False)
    assert len(first) == 8, "each place in a cycle"
    for one, other in zip(first, second, strict=True):
        assert one[1] == other[1], f"the state is the same on both at step {one[0]}"
        assert one[2:] == other[2:] == (True, True), one[0]


def test_without_the_losses_so_far_it_is_another_run(pool: Pool) -> None:
    """Negative control."""
    for ((_, _, same, _),) in pool.run(stopped_anywhere, 2, 2, {"kind": "adamw"}, True):
        assert not same


def auto_lr_run(rank: int, settings: dict[str, Any], probe: bool) -> auto.Run:
    settings = dict(settings)
    local = settings.pop("local", False)
    replicas = hdet.DistributedReplicas(gradients="local" if local else "shared")
    run = auto.Run(S_AUTO, replicas=replicas, **settings)
    if probe:
        source = list(range(9000 + 50 * rank, 9007 + 50 * rank))
        signal = hdet.PairedProbe(
            hdet.Probe(lambda seed: auto.loss_of(run.model, seed), source), num_pairs=4
        )
        controller = hdet.LongHorizonController(
            start_value=1e-3, climb_end=8, settle=1.0, doubt=20.0, cycle_growth=0.0, cycle_steps=11
        )
        run = auto.Run(S_AUTO, replicas=replicas, signal=signal, controller=controller, **settings)
        signal._probe._loss = lambda seed: auto.loss_of(run.model, seed)
    return run


S_AUTO = 80


def auto_lr_stopped(rank: int, settings: dict[str, Any], probe: bool) -> list[Any]:
    def train(run: auto.Run, steps: range) -> list[list[float]]:
        rates = []
        for step in steps:
            loss = auto.loss_of(run.model, 2 * step + rank)
            loss.backward()
            for param in () if settings.get("local") else run.model.parameters():
                dist.all_reduce(param.grad)
                assert param.grad is not None
                param.grad /= 2
            run.optimizer.step()
            run.optimizer.zero_grad()
            run.scheduler.step(loss)
            rates.append([float(group["lr"]) for group in run.optimizer.param_groups])
        return rates

    found = []
    for stop in (3, 17, 29, 40, 62):
        whole = auto_lr_run(rank, settings, probe)
        train(whole, range(stop))
        whole.scheduler.converge()
        state = whole.state()
        shared = digest(state["scheduler"])
        resumed = auto_lr_run(rank, settings, probe)
        resumed.load(from_rank_0(through_a_file(state)))
        same = train(whole, range(stop, S_AUTO)) == train(resumed, range(stop, S_AUTO))
        for run in (whole, resumed):
            run.scheduler.converge()
        found.append((stop, shared, same, torch.equal(whole.point(), resumed.point())))
    return found


@pytest.mark.parametrize(
    ("settings", "probe"),
    [
        ({}, False),
        ({}, True),
        ({"spread_ratio": 0.2}, False),
        ({"spread_ratio": 0.2}, True),
        ({"local": True, "per_group": True}, False),
        ({"local": True}, True),
    ],
    ids=str,
)
def test_auto_lr_stopped_anywhere_on_two_processes(
    pool: Pool, settings: dict[str, Any], probe: bool
) -> None:
    first, second = pool.run(auto_lr_stopped, 2, settings, probe)
    for one, other in zip(first, second, strict=True):
        assert one[1] == other[1], f"the state is the same on both at step {one[0]}"
        assert one[2:] == other[2:] == (True, True), one[0]


def unconverged(rank: int, settings: dict[str, Any], probe: bool) -> list[str]:
    """Saved without a converge: who is told what."""
    run = auto_lr_run(rank, settings, probe)
    heard = []
    for stop in range(1, 40):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            auto.loss_of(run.model, stop).backward()
            run.optimizer.step()
            run.optimizer.zero_grad()
            run.scheduler.step()
            run.scheduler.state_dict()
        heard += [str(own.message) for own in caught]
    return heard


@pytest.mark.parametrize(
    ("settings", "probe", "message"),
    [
        ({}, False, None),
        ({"spread_ratio": 0.2}, False, "after the last converge"),
    ],
)
def test_who_has_to_converge_is_told_once(
    pool: Pool, settings: dict[str, Any], probe: bool, message: str | None
) -> None:
    for heard in pool.run(unconverged, 2, settings, probe):
        if message is None:
            assert heard == []
        else:
            (line,) = heard
            assert message in line


def at_another_number(rank: int, size: int, state: Any, steps: range) -> tuple[Any, ...]:
    run = Run("adamw", size, rank)
    if state is not None:
        run.load(state)
    loaded = run.ensemble.base_values, run.ensemble.controller_states
    run.train(steps)
    saved = run.save()
    return loaded, (run.ensemble.base_values, run.ensemble.controller_states), saved


def test_four_processes_go_on_as_two_and_as_four_again(pool: Pool) -> None:
    state, before = None, None
    for size, steps in ((4, range(13)), (2, range(13, 18)), (4, range(18, S))):
        results = pool.run(at_another_number, size, size, state, steps)
        loaded, left, state = results[0]
        for own_loaded, own_left, own_state in results:
            assert (own_loaded, own_left) == (loaded, left)
            assert digest(own_state["scheduler"]) == digest(state["scheduler"])
        assert before is None or loaded == before
        before = left
        state = through_a_file(state)
    assert any(own["velocity"] for own in before[1].values()) if before else False


def checkpointed(rank: int, folder: str, is_auto: bool) -> tuple[bool, bool]:
    def build() -> Any:
        return auto_lr_run(rank, {}, False) if is_auto else Run("adamw", 2, rank)

    def save_of(run: Any) -> dict[str, Any]:
        run.scheduler.converge()
        parts = {"model": run.model, "optimizer": run.optimizer, "scheduler": run.scheduler}
        return {name: part.state_dict() for name, part in parts.items()}

    whole = build()
    whole.train(range(13))
    dcp.save(save_of(whole), checkpoint_id=folder)
    other = build()
    other.train(range(1))
    held = save_of(other)
    dcp.load(held, checkpoint_id=folder)
    other.model.load_state_dict(held["model"])
    other.optimizer.load_state_dict(held["optimizer"])
    other.scheduler.load_state_dict(held["scheduler"])
    same_state = digest(whole.scheduler.state_dict()) == digest(other.scheduler.state_dict())
    return same_state, whole.train(range(13, S)) == other.train(range(13, S))


@pytest.mark.parametrize("is_auto", [False, True])
def test_torchs_distributed_checkpoint(pool: Pool, is_auto: bool, tmp_path: Any) -> None:
    assert pool.run(checkpointed, 2, str(tmp_path), is_auto) == [(True, True)] * 2
