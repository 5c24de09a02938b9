"""`DistributedReplicas` on gloo processes: switched off, faults, gradients, misuse."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hdet
from tests import reference, training
from tests.one_parameter import one_parameter, scheduler_of
from tests.pool import Pool

pytestmark = pytest.mark.distributed


def switched_off(rank: int) -> tuple[bool, int]:
    torch.manual_seed(rank)
    param, optimizer = one_parameter(float(rank))
    replicas = hdet.DistributedReplicas()
    calls = []
    replicas.all_reduce = lambda flat: calls.append(flat)
    scheduler = scheduler_of(optimizer, spread_ratio=0.0, replicas=replicas)
    state = torch.get_rng_state()
    for _ in range(20):
        optimizer.step()
        scheduler.step(1.0)
    scheduler.converge()
    untouched = param.tolist() == [float(rank)] * 2
    return untouched and torch.equal(state, torch.get_rng_state()), len(calls)


def test_without_a_spread_no_tensor_is_touched(pool: Pool) -> None:
    assert pool.run(switched_off, 3) == [(True, 0)] * 3


def train_with_fault(
    rank: int, bad_rank: int | None, where: str, step_of_fault: int
) -> dict[str, Any]:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("hdet")
    logger.addHandler(handler)
    param, optimizer = one_parameter()
    optimizer = torch.optim.Adam([param], lr=0.1)
    scheduler = scheduler_of(
        optimizer, max_lr=0.1, cycle_momentum=False, auto_lr=True, warmup_steps=4, temperature=0.01
    )
    for step in range(8):
        param.grad = torch.tensor([1.0, -1.0])
        loss = torch.tensor(1.0 + 0.1 * rank)
        optimizer.step()
        if step == step_of_fault and rank == bad_rank:
            if where == "loss":
                loss = torch.tensor(float("nan"))
            elif where == "parameter":
                param.data[1] = float("inf")
            else:
                optimizer.state[param]["exp_avg"][0] = float("nan")
                param.data[0] = float("nan")
        scheduler.step(loss)
    logger.removeHandler(handler)
    return {
        "param": param.detach().clone(),
        "moment": optimizer.state[param]["exp_avg"].clone(),
        "base": scheduler.ensemble.base_values["lr/0"],
        "log": records,
    }


@pytest.mark.parametrize("where", ["loss", "parameter", "state"])
@pytest.mark.parametrize("bad_rank", [0, 2])
def test_a_bad_replica_is_left_out_restored_and_reported(
    pool: Pool, where: str, bad_rank: int
) -> None:
    results = pool.run(train_with_fault, 3, bad_rank, where, 3)
    for found in results:
        assert torch.equal(found["param"], results[0]["param"])
        assert torch.equal(found["moment"], results[0]["moment"])
        assert found["base"] == results[0]["base"]
        assert bool(torch.isfinite(found["param"]).all())
        assert bool(torch.isfinite(found["moment"]).all())
        assert any(f"step 4: replicas [{bad_rank}]" in line for line in found["log"])
    clean = pool.run(train_with_fault, 3, None, where, 3)
    assert not torch.equal(clean[0]["param"], results[0]["param"]), "it did count before"


def all_bad(rank: int) -> str:
    del rank
    param, optimizer = one_parameter(float("nan"))
    scheduler = scheduler_of(optimizer, cycle_steps=1)
    param.grad = torch.ones(2)
    optimizer.step()
    try:
        scheduler.step(1.0)
    except hdet.errors.NonFiniteError as error:
        return str(error)
    return "no error"


def test_when_all_replicas_are_bad_the_run_stops_and_says_so(pool: Pool) -> None:
    for found in pool.run(all_bad, 2):
        assert "all 2 replicas" in found
        assert "lower the rate" in found


def loss_nan_everywhere(rank: int) -> list[float]:
    param, optimizer = one_parameter(float(rank))
    scheduler = scheduler_of(optimizer, cycle_steps=1, auto_lr=True)
    optimizer.step()
    scheduler.step(float("nan"))
    return param.tolist()


def test_losses_that_are_bad_everywhere_do_not_stop_sound_parameters(pool: Pool) -> None:
    assert pool.run(loss_nan_everywhere, 2) == [[0.5, 0.5]] * 2


def test_local_gradients_converge_to_one_model_and_one_state(pool: Pool) -> None:
    ranks = pool.run(training.train_process, 3, "adam", 3, torch.float64, 35, False, "local", {})
    for found in ranks:
        assert torch.equal(found["converged"], ranks[0]["converged"])
        assert not torch.equal(found["replica"], found["converged"])
    shared = pool.run(training.train_process, 3, "adam", 3, torch.float64, 35, False, "shared", {})
    assert not torch.allclose(shared[0]["converged"], ranks[0]["converged"], rtol=1e-6)


def test_no_spread_under_ddp_is_ddp_bit_for_bit(pool: Pool) -> None:
    off = {"spread_ratio": 0.0, "auto_lr": False}
    ranks = pool.run(training.train_process, 3, "adamw", 3, torch.float32, 25, False, "shared", off)
    plain = pool.run(plain_ddp, 3, 25)
    for found, expected in zip(ranks, plain, strict=True):
        assert torch.equal(found["converged"], expected)


def plain_ddp(rank: int, num_steps: int) -> torch.Tensor:
    model, optimizer = training.build("adamw", torch.float32)
    wrapped = nn.parallel.DistributedDataParallel(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=[0.02, 0.01], total_steps=40, cycle_momentum=False
    )
    for step in range(num_steps):
        x, y = training.batch(step, 3, torch.float32)
        own = slice(4 * rank, 4 * rank + 4)
        training.loss_fn(wrapped, x[own], y[own]).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return training.flat(model)


def quadratic_process(rank: int, num_steps: int) -> list[float]:
    theta = nn.Parameter(torch.tensor([3.0, -2.0], dtype=torch.float64))
    optimizer = torch.optim.SGD([theta], lr=0.05, momentum=0.9)
    ensemble = hdet.Ensemble(
        optimizer, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.4)], cycle_steps=5, seed=2
    )
    for step in range(num_steps):
        own = torch.tensor(quadratic_gradient(step, rank, theta.tolist()), dtype=torch.float64)
        dist.all_reduce(own)
        theta.grad = own / 3
        optimizer.step()
        ensemble.step(1.0)
    return theta.tolist()


def quadratic_gradient(step: int, replica: int, theta: list[float]) -> list[float]:
    return [2.0 * theta[0] + 0.1 * replica, 0.5 * theta[1] - 0.05 * (step % 3) * replica]


def test_parameters_follow_equations_2_and_3(pool: Pool) -> None:
    rho = reference.multipliers(3, 0.4)

    def rates(step: int) -> list[float]:
        cycle = step // 5
        order = hdet.functional.permutation(2, cycle, 0, 3).tolist() if cycle else [0, 1, 2]
        return [0.05 * rho[own] for own in order]

    expected = reference.shared_gradient_sgd(
        start=[3.0, -2.0],
        gradient=quadratic_gradient,
        rates=rates,
        n=3,
        num_steps=18,
        cycle_steps=5,
        momentum=0.9,
    )
    for found, own in zip(pool.run(quadratic_process, 3, 18), expected, strict=True):
        assert found == pytest.approx(own, rel=1e-12)


def environment_without_group(rank: int) -> list[str]:
    import os

    messages = []
    os.environ["WORLD_SIZE"] = "2"
    for build in (
        lambda: scheduler_of(one_parameter()[1]),
        hdet.DistributedReplicas,
    ):
        try:
            build()
        except hdet.HDETError as error:
            messages.append(str(error))
    del os.environ["WORLD_SIZE"]
    assert rank >= 0
    return messages


def test_a_forgotten_process_group_is_named(pool: Pool) -> None:
    for first, second in pool.run(environment_without_group, 1, group=False):
        assert "WORLD_SIZE is 2" in first
        assert "init_process_group" in first
        assert "init_process_group" in second


def fan_out_on_processes(rank: int) -> str:
    del rank
    _, optimizer = one_parameter()
    scheduler = scheduler_of(optimizer)
    try:
        list(scheduler.ensemble.fan_out(torch.ones(4)))
    except hdet.HDETError as error:
        return str(error)
    return "no error"


def test_fan_out_is_for_virtual_replicas(pool: Pool) -> None:
    for found in pool.run(fan_out_on_processes, 2):
        assert "each of 2 processes is a replica" in found
