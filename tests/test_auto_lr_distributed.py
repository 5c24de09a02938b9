"""`hdet.AutoLR` on gloo processes under DDP and on virtual replicas: one run, whoever holds it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.errors import HDETError
from tests import auto
from tests.pool import Pool

S = 200
SIZE = 12  # examples a step, over all ranks


def on_a_rank(rank: int, size: int, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    model = auto.model_of()
    optimizer = auto.optimizer_of(model, kind)
    wrapped = nn.parallel.DistributedDataParallel(model)
    scheduler = hdet.AutoLR(optimizer, S, **{"anneal": 0.5, **settings})
    rates, bases = [], []
    part = slice(rank * SIZE // size, (rank + 1) * SIZE // size)
    for step in range(S):
        rates.append([group["lr"] for group in optimizer.param_groups])
        bases.append(list(scheduler.ensemble.base_values.values()))
        x, y = auto.batch(step, SIZE)
        optimizer.zero_grad()
        (wrapped(x[part]) - y[part]).square().mean().backward()
        optimizer.step()
        scheduler.step()
    scheduler.converge()
    return {"rates": rates, "bases": bases, "point": flat(model)}


def flat(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def alone(kind: str, **settings: Any) -> dict[str, Any]:
    run = auto.Run(S, kind, **settings)
    return {"rates": run.train(range(S)), "point": run.point().tolist()}


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_find_the_rates_of_one_process(pool: Pool, size: int, kind: str) -> None:
    found = pool.run(on_a_rank, size, size, kind, {})
    expected = alone(kind)
    assert len({step[0] for step in map(tuple, expected["rates"])}) > 50
    for own in found:
        assert own["rates"] == found[0]["rates"], "to the last bit among ranks"
        assert own["point"] == found[0]["point"]
        for step, other in zip(own["rates"], expected["rates"], strict=True):
            assert step == pytest.approx(other, rel=1e-10, abs=1e-15)
        assert own["point"] == pytest.approx(expected["point"], rel=1e-8, abs=1e-8)


@pytest.mark.distributed
@pytest.mark.parametrize("size", [2, 3])
def test_exploring_ranks_agree_on_the_base_and_end_as_one(pool: Pool, size: int) -> None:
    found = pool.run(on_a_rank, size, size, "AdamW", {"spread_ratio": 0.2})
    for own in found:
        assert own["bases"] == found[0]["bases"]
        assert own["point"] == found[0]["point"]
    bases = found[0]["bases"]
    assert bases[-1][0] > 0.0
    assert max(base for base, _ in bases) > 1e-3
    for step in range(S):
        mean = sum(own["rates"][step][0] for own in found) / size
        assert mean == pytest.approx(bases[step][0])
    assert any(found[0]["rates"][step] != found[1]["rates"][step] for step in range(S))


def with_settings_of_its_own(rank: int) -> str:
    model = auto.model_of()
    optimizer = auto.optimizer_of(model)
    controller = hdet.LongHorizonController(stride=0.6 + 0.1 * rank)
    scheduler = hdet.AutoLR(optimizer, S, controller=controller, anneal=0.5)
    auto.loss_of(model, 0).backward()
    optimizer.step()
    try:
        scheduler.step()
    except HDETError as error:
        return str(error)
    return "nothing"


@pytest.mark.distributed
def test_ranks_with_other_settings_are_named(pool: Pool) -> None:
    for message in pool.run(with_settings_of_its_own, 2):
        assert "controller" in message
        assert "\n" not in message


def resumed_on_a_rank(rank: int, size: int, state: dict[str, Any]) -> list[Any]:
    run = auto.Run(S)
    run.load(state)
    rates = []
    for step in range(60, S):
        rates.append([group["lr"] for group in run.optimizer.param_groups])
        x, y = auto.batch(step, SIZE)
        run.optimizer.zero_grad()
        (run.model(x) - y).square().mean().backward()
        run.optimizer.step()
        run.scheduler.step()
    return rates


@pytest.mark.distributed
def test_a_state_goes_on_at_another_number_of_ranks(pool: Pool) -> None:
    run = auto.Run(S)
    run.train(range(60))
    state = run.state()
    found = pool.run(resumed_on_a_rank, 2, 2, state)
    assert found[0] == found[1] == run.train(range(60, S))


def on_virtual_replicas(
    num_replicas: int, *, kind: str = "AdamW", steps: int = S, **settings: Any
) -> dict[str, Any]:
    model = auto.model_of()
    optimizer = auto.optimizer_of(model, kind)
    scheduler = hdet.AutoLR(
        optimizer, steps, anneal=0.5, replicas=hdet.VirtualReplicas(num_replicas), **settings
    )
    ensemble = scheduler.ensemble
    rates, apart = [], 0
    for step in range(steps):
        rates.append([group["lr"] for group in optimizer.param_groups])
        losses, points = [], []
        for _, (x, y) in ensemble.fan_out(auto.batch(step, 12 if num_replicas < 5 else 64)):
            points.append(flat(model))
            loss = (model(x) - y).square().mean()
            (loss / num_replicas).backward()
            losses.append(loss.detach())
        apart += points[0] != points[-1]
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(torch.stack(losses))
    scheduler.converge()
    return {"rates": rates, "point": flat(model), "apart": apart}


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_virtual_replicas_without_a_spread_are_one_run(kind: str) -> None:
    found, expected = on_virtual_replicas(2, kind=kind), alone(kind)
    assert found["apart"] == 0
    for step, other in zip(found["rates"], expected["rates"], strict=True):
        assert step == pytest.approx(other, rel=1e-10, abs=1e-15)


@pytest.mark.parametrize("num_replicas", [2, 8])
@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_virtual_replicas_explore_and_find_a_rate(num_replicas: int, kind: str) -> None:
    found = on_virtual_replicas(num_replicas, kind=kind, spread_ratio=0.2)
    held = found["rates"][99][0]
    assert found["apart"] > 100
    assert 1e-4 < held < 1.0
    assert found["rates"][-1][0] == pytest.approx(held / 100, rel=0.3)


def test_sixty_four_virtual_replicas() -> None:
    found = on_virtual_replicas(64, kind="SGD", steps=60, spread_ratio=0.2)
    assert found["apart"] > 30
    assert 1e-5 < max(rate for rate, _ in found["rates"]) < 1.0


@pytest.mark.distributed
def test_virtual_replicas_equal_processes_while_exploring(pool: Pool) -> None:
    processes = pool.run(on_a_rank, 2, 2, "SGD", {"spread_ratio": 0.2})
    virtual = on_virtual_replicas(2, kind="SGD", spread_ratio=0.2)
    # The trails of two processes lie on either side of the virtual base point's, so that what
    # they tell differs in second order of the spread; the climb, which hears signs, does not.
    for step in range(30):
        assert virtual["rates"][step] == pytest.approx(processes[0]["bases"][step], rel=1e-6)
