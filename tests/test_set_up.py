"""Who can be put together, what is refused, and what a refusal leaves behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hdet
from tests.linear import batch, model_and_optimizer, virtual_step
from tests.pool import Pool


def steering_apart(rank: int) -> str:
    model, optimizer = model_and_optimizer("Adam")
    assert rank >= 0
    assert model is not None
    try:
        hdet.OneCycleLR(
            optimizer,
            0.1,
            total_steps=30,
            cycle_steps=5,
            spread_ratio=0.1,
            auto_lr=True,
            replicas=hdet.VirtualReplicas(2),
        )
    except hdet.HDETError as error:
        return str(error)
    return "no error"


@pytest.mark.distributed
def test_virtual_replicas_do_not_steer_a_run_of_processes(pool: Pool) -> None:
    for message in pool.run(steering_apart, 2):
        assert "process group of 2" in message


def fully_sharded(rank: int) -> str:
    import warnings

    from torch.distributed.fsdp import FullyShardedDataParallel

    assert rank >= 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            hdet.Ensemble(optimizer, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)])
        except hdet.HDETError as error:
            return str(error)
    return "no error"


@pytest.mark.distributed
def test_flat_parameters_are_refused(pool: Pool) -> None:
    for message in pool.run(fully_sharded, 2):
        assert "FSDP parameters" in message
        assert "HSDP" in message


def loss_on_one_rank(rank: int) -> list[float]:
    param = nn.Parameter(torch.full((2,), float(rank)))
    optimizer = torch.optim.SGD([param], lr=0.1)
    ensemble = hdet.Ensemble(
        optimizer, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)], cycle_steps=2
    )
    for _ in range(2):
        optimizer.step()
        ensemble.step(1.0 if rank == 0 else None)
    return param.tolist()


@pytest.mark.distributed
def test_a_loss_that_one_rank_did_not_report_disqualifies_nobody(pool: Pool) -> None:
    assert pool.run(loss_on_one_rank, 2) == [[0.5, 0.5]] * 2


class Plain(hdet.AbstractController):
    """A user's own, with a setting and without a repr."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @property
    def start_step(self) -> int:
        return 0

    def init(self) -> dict[str, float]:
        return {}

    def update(
        self, state: dict[str, float], base: float, evidence: hdet.Evidence
    ) -> tuple[dict[str, float], float]:
        del evidence
        return state, base * self.factor


def own_controller(rank: int, differs: bool) -> str:
    _, optimizer = model_and_optimizer("Adam")
    ensemble = hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)],
        controller=Plain(0.5 + (rank if differs else 0)),
        cycle_steps=1,
    )
    try:
        ensemble.step(1.0)
    except hdet.HDETError as error:
        return str(error)
    return f"{ensemble.base_values['lr/0']:.6f}"


@pytest.mark.distributed
def test_a_controller_of_the_users_own_on_processes(pool: Pool) -> None:
    assert pool.run(own_controller, 2, False) == ["0.001000"] * 2
    for message in pool.run(own_controller, 2, True):
        assert "Plain(factor=0.5)" in message
        assert "Plain(factor=1.5)" in message


def test_misplaced_calls_are_named() -> None:
    _, optimizer = model_and_optimizer("Adam")
    scheduler = hdet.OneCycleLR(
        optimizer,
        0.5,
        total_steps=30,
        spread_ratio=0.3,
        cycle_steps=3,
        replicas=hdet.VirtualReplicas(3),
        auto_lr=True,
    )
    ensemble = scheduler.ensemble
    loop = ensemble.fan_out(batch(0))
    next(loop)
    with pytest.raises(hdet.errors.UsageError, match=r"converge\(\) was called inside fan_out"):
        ensemble.converge()
    with pytest.raises(hdet.errors.UsageError, match=r"fan_out\(\) was called inside fan_out"):
        next(ensemble.fan_out(batch(0)))
    with pytest.raises(hdet.errors.UsageError, match=r"step\(\) was called inside fan_out"):
        scheduler.step([1.0, 1.0, 1.0])
    loop.close()
    ensemble.observe([1.0, 1.0, 1.0])
    with pytest.raises(hdet.errors.UsageError, match="handed over twice"):
        scheduler.step([1.0, 1.0, 1.0])


def test_virtual_replicas_can_serve_again_when_their_scheduler_is_gone() -> None:
    import gc

    model, optimizer = model_and_optimizer("AdamW")
    replicas = hdet.VirtualReplicas(3)
    rates = [hdet.LearningRate(0, spread_ratio=0.3)]
    ensemble = hdet.Ensemble(optimizer, hyperparameters=rates, replicas=replicas)
    virtual_step(model, ensemble, 0)
    del ensemble
    gc.collect()
    again = hdet.Ensemble(optimizer, hyperparameters=rates, replicas=replicas, cycle_steps=5)
    virtual_step(model, again, 0)
    # One is the replicas', the other counts updates; none is left of the first ensemble's.
    assert len(optimizer._optimizer_step_post_hooks) == 2


def test_a_cycle_longer_than_the_run_warns() -> None:
    _, optimizer = model_and_optimizer("Adam")
    with pytest.warns(hdet.HDETWarning, match="cycle_steps=1000 is longer than the run of 30"):
        hdet.OneCycleLR(
            optimizer, 0.5, total_steps=30, spread_ratio=0.3, replicas=hdet.VirtualReplicas(3)
        )


def test_switched_off_virtual_replicas_hold_nothing() -> None:
    _, optimizer = model_and_optimizer("AdamW")
    scheduler = hdet.OneCycleLR(optimizer, 0.5, total_steps=30, replicas=hdet.VirtualReplicas(3))
    assert scheduler.ensemble.replicas._storage is None


def test_a_refused_argument_leaves_the_optimizer_as_it_was() -> None:
    _, optimizer = model_and_optimizer("Adam")
    before = dict(optimizer.param_groups[0])
    for bad in ({"replicas": "x"}, {"seed": "x"}, {"model": "x"}, {"spread_ratio": 2.0}):
        with pytest.raises(hdet.HDETError):
            hdet.OneCycleLR(optimizer, 0.5, total_steps=30, **bad)
        assert dict(optimizer.param_groups[0]) == before
