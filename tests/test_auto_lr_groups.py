"""`hdet.AutoLR` with several parameter groups: how their rates relate, and their bounds."""

from __future__ import annotations

import math

import pytest
import torch

import hdet
from tests.auto import Run, loss_of, model_of


def test_groups_keep_their_relative_rates() -> None:
    rates = Run().train(range(120))
    assert all(b == pytest.approx(0.1 * a, rel=1e-12) for a, b in rates)
    assert len({a for a, _ in rates}) > 60


def test_or_start_equal() -> None:
    assert all(a == b for a, b in Run(relative_rates=False).train(range(120)))


def test_or_find_one_each() -> None:
    run = Run(per_group=True)
    ratios = [b / a for a, b in run.train(range(119))]
    assert ratios[0] == pytest.approx(0.1)
    assert any(abs(ratio / 0.1 - 1.0) > 0.05 for ratio in ratios)


@pytest.mark.parametrize("bounds", [(0.0, math.inf), (1e-5, 1.0)])
@pytest.mark.parametrize("per_group", [False, True])
def test_a_group_of_rate_zero_stays_where_it_is(
    bounds: tuple[float, float], per_group: bool
) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(
        [
            {"params": model[0].parameters(), "lr": 0.0},
            {"params": model[2].parameters(), "lr": 0.1},
        ]
    )
    scheduler = hdet.AutoLR(optimizer, 40, bounds=bounds, per_group=per_group)
    before = model[0].weight.detach().clone()
    for step in range(40):
        loss_of(model, step).backward()
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.0
        assert scheduler.ensemble.base_values["lr/1"] > 0.0 or step == 39
    assert torch.equal(model[0].weight, before)


def test_bounds_hold_until_the_anneal() -> None:
    rates = [a for a, _ in Run(bounds=(1e-5, 1e-3)).train(range(120))]
    assert (min(rates[:60]), max(rates)) == (1e-5, pytest.approx(1e-3))
    assert rates[-1] < 1e-3 / 50


BOUNDS = [(1e-5, 1e-3), (0.0, 1e-7), (3e-5, 7e-5), (0.5, math.inf)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("per_group", [False, True])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_smaller_groups_bounds_are_as_much_smaller(
    bounds: tuple[float, float], per_group: bool, as_tensor: bool
) -> None:
    """They start inside too: 1e-6, or the nearest to it that the bounds allow."""
    run = Run()
    given = [0.3, 0.1]
    for group, rate in zip(run.optimizer.param_groups, given, strict=True):
        del group["initial_lr"]
        group.update(lr=torch.tensor(rate) if as_tensor else rate, foreach=False)
    run.scheduler = hdet.AutoLR(run.optimizer, 120, anneal=0.5, bounds=bounds, per_group=per_group)
    rates = run.train(range(60))
    low, high = bounds
    assert rates[0][0] == pytest.approx(min(max(1e-6, low), high))
    for scale, own in zip((1.0, 1 / 3), zip(*rates, strict=True), strict=True):
        assert own[0] == pytest.approx(rates[0][0] * scale)
        assert min(own) >= low * scale * (1 - 1e-6)
        assert max(own) <= high * scale * (1 + 1e-6)
