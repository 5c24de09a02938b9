"""`warm_start_` (Eq. 10): how much noise, whose, and that it ends in one model."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import hdet
from tests import reference, training
from tests.linear import model_and_optimizer, virtual_step
from tests.pool import Pool


def big_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 100))


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


def test_the_noise_has_the_global_norm_and_count() -> None:
    model = big_model()
    before = flat(model)
    hdet.warm_start_(model, noise_scale=0.05)
    noise = flat(model) - before
    expected = reference.warm_noise_std(float(before.norm()), before.numel(), 0.05)
    assert float(noise.std()) == pytest.approx(expected, rel=0.01)
    assert float(noise.mean()) == pytest.approx(0.0, abs=5 * expected / before.numel() ** 0.5)
    biases = torch.cat([(m.bias.detach()) for m in model.children()])
    assert biases.numel() == 400, "biases get the same deviation as matrices"


def test_per_tensor_uses_each_tensors_own() -> None:
    model = big_model()
    before = [p.detach().clone() for p in model.parameters()]
    hdet.warm_start_(model, noise_scale=0.05, per_tensor=True)
    for start, param in zip(before, model.parameters(), strict=True):
        expected = reference.warm_noise_std(float(start.norm()), start.numel(), 0.05)
        assert float((param.detach() - start).std()) == pytest.approx(expected, rel=0.15)


def test_nobody_elses_random_state_is_read_or_moved() -> None:
    torch.manual_seed(1)
    first, second = big_model(), big_model()
    states = (torch.get_rng_state(), random.getstate())
    hdet.warm_start_(first, seed=4)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    torch.manual_seed(99)
    hdet.warm_start_(second, seed=4)
    assert torch.equal(flat(first), flat(second))
    hdet.warm_start_(third := big_model(), seed=5)
    assert not torch.equal(flat(first), flat(third))


def test_frozen_parameters_are_left_alone_and_do_not_count() -> None:
    model = big_model()
    model[0].requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    hdet.warm_start_(model, noise_scale=0.05)
    after = list(model.parameters())
    assert torch.equal(before[0], after[0])
    norm = float(torch.cat([t.reshape(-1) for t in before[2:]]).norm())
    expected = reference.warm_noise_std(norm, 300 * 100 + 100, 0.05)
    assert float((after[2] - before[2]).detach().std()) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_keep_their_type(dtype: torch.dtype) -> None:
    model = big_model().to(dtype)
    before = flat(model)
    hdet.warm_start_(model, noise_scale=0.5)
    assert all(p.dtype == dtype for p in model.parameters())
    assert float((flat(model) - before).norm() / before.norm()) == pytest.approx(0.5, rel=0.02)


def warm_process(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    model, optimizer = training.build("sgd", torch.float64)
    hdet.warm_start_(model, noise_scale=0.1, seed=3)
    start = training.flat(model)
    scheduler = hdet.OneCycleLR(
        optimizer, [0.02, 0.01], total_steps=40, spread_ratio=0.3, cycle_steps=5, model=model
    )
    wrapped = nn.parallel.DistributedDataParallel(model, init_sync=False)
    for step in range(7):
        x, y = training.batch(step, 3, torch.float64)
        own = slice(4 * rank, 4 * rank + 4)
        training.loss_fn(wrapped, x[own], y[own]).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    scheduler.converge()
    return start, training.flat(model)


@pytest.mark.distributed
@pytest.mark.parametrize("optimizer", ["line", "copies"])
def test_virtual_replicas_start_and_go_on_like_processes(pool: Pool, optimizer: str) -> None:
    ranks = pool.run(warm_process, 3)
    starts = [start for start, _ in ranks]
    assert not torch.equal(starts[0], starts[1])
    model, opt = training.build("sgd", torch.float64)
    if optimizer == "copies":  # a subclass is not in the table: N full copies
        opt = type("Mine", (torch.optim.SGD,), {})(
            [{"params": g["params"]} for g in opt.param_groups], lr=1e-2, momentum=0.9
        )
    replicas = hdet.VirtualReplicas(3)
    hdet.warm_start_(model, noise_scale=0.1, seed=3, replicas=replicas)
    scheduler = hdet.OneCycleLR(
        opt,
        [0.02, 0.01],
        total_steps=40,
        spread_ratio=0.3,
        cycle_steps=5,
        replicas=replicas,
        model=model,
    )
    for step in range(7):
        losses = []
        for replica, (x, y) in scheduler.ensemble.fan_out(training.batch(step, 3, torch.float64)):
            if step == 0:
                assert torch.allclose(training.flat(model), starts[replica], rtol=1e-12)
            loss = training.loss_fn(model, x, y)
            losses.append(loss.detach())
            (loss / 3).backward()
        opt.step()
        opt.zero_grad()
        scheduler.step(losses)
    scheduler.converge()
    error = (training.flat(model) - ranks[0][1]).norm() / ranks[0][1].norm()
    assert float(error) < 1e-12


def test_after_the_scheduler_was_built_it_works_as_well() -> None:
    model, opt = training.build("sgd", torch.float64)
    replicas = hdet.VirtualReplicas(2)
    ensemble = hdet.Ensemble(
        opt, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)], replicas=replicas
    )
    hdet.warm_start_(model, noise_scale=0.1, replicas=replicas)
    points = [training.flat(model) for _ in ensemble.fan_out(torch.ones(2, 5))]
    assert not torch.equal(points[0], points[1])
    assert torch.allclose((points[0] + points[1]) / 2, training.flat(model), rtol=1e-12)


def test_a_warm_start_is_averaged_without_a_spread() -> None:
    model, optimizer = model_and_optimizer("Adam")
    replicas = hdet.VirtualReplicas(3)
    hdet.warm_start_(model, 0.5, replicas=replicas)
    scheduler = hdet.OneCycleLR(
        optimizer, 0.05, total_steps=30, cycle_steps=5, replicas=replicas, cycle_momentum=False
    )
    for step in range(7):
        points = virtual_step(model, scheduler.ensemble, step)
        apart = not torch.equal(points[0], points[1])
        assert apart == (step < 5)
        scheduler.step()


def warm_processes_without_a_spread(rank: int) -> list[float]:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    replicas = hdet.DistributedReplicas()
    hdet.warm_start_(model, 0.5, replicas=replicas)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    apart = model.weight.item()
    scheduler = hdet.OneCycleLR(
        optimizer, 0.1, total_steps=30, cycle_steps=5, cycle_momentum=False, replicas=replicas
    )
    scheduler.converge()
    assert rank >= 0
    return [apart, model.weight.item()]


@pytest.mark.distributed
def test_a_warm_start_on_processes_is_averaged_without_a_spread(pool: Pool) -> None:
    (first, end_0), (second, end_1) = pool.run(warm_processes_without_a_spread, 2)
    assert first != second
    assert end_0 == end_1 == pytest.approx((first + second) / 2)
