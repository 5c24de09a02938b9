"""`DistributedReplicas` on gloo processes: agreement, faults, groups, meshes, local gradients."""

from __future__ import annotations

import functools
import io
import logging
import pickle
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import hdet
from tests import reference, training
from tests.pool import Pool

pytestmark = pytest.mark.distributed


def one_parameter(value: float = 1.0) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    param = nn.Parameter(torch.full((2,), value))
    return param, torch.optim.SGD([param], lr=0.1)


def scheduler_of(optimizer: torch.optim.Optimizer, **overrides: Any) -> hdet.OneCycleLR:
    settings: dict[str, Any] = {
        "max_lr": 0.1,
        "total_steps": 20,
        "cycle_momentum": False,
        "spread_ratio": 0.5,
        "cycle_steps": 4,
    }
    return hdet.OneCycleLR(optimizer, **{**settings, **overrides})


# ---------------------------------------------------------------- agreement


def disagree(rank: int, odd: dict[str, Any]) -> str:
    _, optimizer = one_parameter()
    scheduler = scheduler_of(optimizer, **(odd if rank == 1 else {}))
    optimizer.step()
    try:
        scheduler.step(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"cycle_steps": 5}, r"cycle_steps, got 4 on replica 0 and 5 on replica 1"),
        ({"spread_ratio": 0.25}, r"hyperparameters\[0\], got"),
        ({"spread_ratio": 0.0}, r"switched on, got True on replica 0 and False on replica 1"),
        ({"seed": 7}, r"seed, got 0 on replica 0 and 7 on replica 1"),
        ({"total_steps": 30}, r"total_steps, got 20 on replica 0 and 30"),
        ({"max_lr": 0.2}, r"base values\[0\]"),
        ({"auto_lr": True}, r"controller, got 'FixedController\(\)'"),
        ({"pct_start": 0.5}, r"schedule\[\d+\], got 'schedule_phases\[0\]\.end_step=5\.0' on"),
        ({"anneal_strategy": "linear"}, r"schedule\[\d+\], got .anneal_func_type='cos'|base val"),
        ({"three_phase": True}, r"schedule\[\d+\], got .schedule_phases\["),
        ({"final_div_factor": 10.0}, r"schedule\[\d+\], got 'group\[0\]\.min_lr="),
        ({"cycle_momentum": True}, r"schedule\[\d+\], got 'cycle_momentum=False'"),
        (
            {"cycle_momentum": True, "base_momentum": 0.8, "max_momentum": 0.9},
            r"schedule\[\d+\], got",
        ),
    ],
)
def test_different_settings_are_named_at_the_first_step(
    pool: Pool, odd: dict[str, Any], message: str
) -> None:
    results = pool.run(disagree, 3, odd)
    for found in results:
        assert re.search(message, found), found
        assert "on replica 1" in found
        assert "\n" not in found


def different_plans(rank: int, odd: Any) -> str:
    _, optimizer = one_parameter()
    ensemble = hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)],
        schedule=odd(rank, optimizer),
    )
    try:
        ensemble.step(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return str(error)
    return "no error"


def torch_plan(rank: int, optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3 + rank)


def closed_plan(rank: int, optimizer: torch.optim.Optimizer) -> Any:
    assert optimizer is not None
    return functools.partial(hdet.functional.cosine, total_steps=20 + rank)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (torch_plan, "'step_size=3' on replica 0 and 'step_size=4' on replica 1"),
        (closed_plan, "'bound.total_steps=20' on replica 0 and 'bound.total_steps=21'"),
    ],
)
def test_different_plans_are_named(pool: Pool, odd: Any, message: str) -> None:
    for found in pool.run(different_plans, 2, odd):
        assert message in found


def different_decay(rank: int, when: str) -> str:
    """Weight decay decides whether the optimiser's state is averaged: a message more on a rank."""
    _, optimizer = one_parameter()
    decay = 0.1 if rank == 1 else 0.0
    if when == "built":
        optimizer.param_groups[0]["weight_decay"] = decay
    scheduler = scheduler_of(optimizer, cycle_steps=1)
    try:
        for step in range(2):
            if step == 1:
                optimizer.param_groups[0]["weight_decay"] = decay
            optimizer.step()
            scheduler.ensemble.advance(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return f"step {step}: {error}"
    return "no error"


@pytest.mark.parametrize(("when", "step"), [("built", 0), ("later", 1)])
def test_a_different_weight_decay_is_named(pool: Pool, when: str, step: int) -> None:
    for found in pool.run(different_decay, 2, when):
        assert re.search(
            rf"step {step}: .*optimizer settings\[\d+\], got 'group 0: weight_decay=0\.0' on "
            r"replica 0 and 'group 0: weight_decay=0\.1' on replica 1",
            found,
        ), found


class Finding(torch.optim.SGD):
    """Keeps in its groups what it found on the way, which differs between replicas."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["found"] = group.get("found", 0.0) + group["lr"]
        return super().step(closure)


def finding(rank: int) -> float:
    param = nn.Parameter(torch.ones(2))
    optimizer = Finding([param], lr=0.1)
    scheduler = scheduler_of(optimizer, cycle_steps=2)
    for _ in range(2):
        optimizer.step()
        scheduler.step(1.0)
    assert rank >= 0
    return float(optimizer.param_groups[0]["found"])


def test_what_an_optimizer_finds_on_the_way_may_differ(pool: Pool) -> None:
    assert len(set(pool.run(finding, 2))) == 2


def different_models(rank: int) -> str:
    params = [nn.Parameter(torch.ones(2 + (rank == 2)))]
    scheduler = scheduler_of(torch.optim.SGD(params, lr=0.1))
    try:
        scheduler.ensemble.advance(1.0)
    except hdet.HDETError as error:
        return str(error)
    return "no error"


def test_different_parameters_are_named(pool: Pool) -> None:
    for found in pool.run(different_models, 3):
        assert "parameters[0]" in found
        assert "(2,) torch.float32" in found
        assert "on replica 2" in found


def different_numbers_of_steps(rank: int) -> str:
    _, optimizer = one_parameter()
    scheduler = scheduler_of(optimizer)
    optimizer.step()
    scheduler.step(1.0)
    if rank == 1:
        scheduler.ensemble.seek(5, [0.1])  # as if it had resumed from another checkpoint
    try:
        for _ in range(4):
            optimizer.step()
            scheduler.ensemble.advance(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return str(error)
    return "no error"


def test_replicas_at_different_steps_are_named(pool: Pool) -> None:
    for found in pool.run(different_numbers_of_steps, 2):
        assert "number of steps taken, got 4 on replica 0 and 8 on replica 1" in found


def different_layouts(rank: int) -> str:
    """The same shapes, so the settings agree; another memory layout would scramble the mean."""
    weight = torch.ones(2, 3) if rank == 0 else torch.ones(3, 2).t()
    scheduler = scheduler_of(torch.optim.SGD([nn.Parameter(weight)], lr=0.1), cycle_steps=1)
    try:
        scheduler.ensemble.advance(1.0)
    except hdet.errors.ReplicaMismatchError as error:
        return str(error)
    return "no error"


def test_different_memory_layouts_are_named(pool: Pool) -> None:
    for found in pool.run(different_layouts, 2):
        assert "tensors to average[0]" in found
        assert "strides" in found


# ---------------------------------------------------------------- switched off


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


# ---------------------------------------------------------------- faults at a named rank and step


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


# ---------------------------------------------------------------- checkpoints


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


# ---------------------------------------------------------------- groups and meshes


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


# ---------------------------------------------------------------- gradients


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
