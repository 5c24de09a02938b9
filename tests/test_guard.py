"""The guard: runs that go wrong come back to the last good point, at a lower rate."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.errors import NonFiniteError
from hdet.snapshot import Snapshot

CURVATURE = torch.tensor([1.0, 0.3, 0.1, 0.03])


class Bowl:
    """A noisy quadratic under SGD, which diverges at rates above 2."""

    def __init__(self, lr: float = 0.1, kind: str = "SGD", **settings: Any) -> None:
        torch.manual_seed(0)
        self.theta = nn.Parameter(torch.ones(4))
        self.optimizer = getattr(torch.optim, kind)([self.theta], lr=lr, **settings)
        self.noise = torch.Generator().manual_seed(1)

    def loss(self, scale: float = 1.0) -> torch.Tensor:
        noise = 0.01 * torch.randn(4, generator=self.noise)
        return scale * (0.5 * CURVATURE * (self.theta - noise) ** 2).sum() + 1.0

    def step(self, scale: float = 1.0) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(scale)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def guarded(bowl: Bowl, guard: hdet.Guard | None, **settings: Any) -> hdet.Ensemble:
    rates = [hdet.LearningRate(0)]
    entries: dict[str, Any] = {"hyperparameters": rates, "cycle_steps": 10, **settings}
    return hdet.Ensemble(bowl.optimizer, guard=guard, **entries)


class TestSnapshot:
    @pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop"])
    @pytest.mark.parametrize("device", [None, "cpu"])
    def test_what_it_keeps_comes_back_to_the_last_bit(self, kind: str, device: str | None) -> None:
        bowl = Bowl(0.01, kind, **({"momentum": 0.9} if kind == "SGD" else {}))
        model = nn.BatchNorm1d(3)
        for _ in range(3):
            bowl.step()
        snapshot = Snapshot(bowl.optimizer, model, device)
        snapshot.keep()
        reference, address = copy.deepcopy(bowl.optimizer.state_dict()), bowl.theta.data_ptr()
        theta, buffers = bowl.theta.detach().clone(), copy.deepcopy(list(model.buffers()))
        future = [bowl.step() for _ in range(2)], bowl.theta.detach().clone()
        model(torch.randn(5, 3))
        snapshot.restore()
        assert torch.equal(bowl.theta, theta)
        assert bowl.theta.data_ptr() == address
        for own, kept in zip(model.buffers(), buffers, strict=True):
            assert torch.equal(own, kept)
        for name, value in reference["state"][0].items():
            assert torch.equal(
                torch.as_tensor(bowl.optimizer.state[bowl.theta][name]), torch.as_tensor(value)
            )
        bowl.noise.manual_seed(1)
        for _ in range(3):
            bowl.loss()
        bowl_again = [bowl.step() for _ in range(2)], bowl.theta.detach().clone()
        assert all(map(torch.equal, future[0], bowl_again[0]))
        assert torch.equal(future[1], bowl_again[1])

    def test_before_the_first_step_there_is_no_state(self) -> None:
        bowl = Bowl(0.01, "AdamW")
        snapshot = Snapshot(bowl.optimizer, None, None)
        assert snapshot.is_empty
        snapshot.keep()
        bowl.step()
        snapshot.restore()
        assert not bowl.optimizer.state
        assert torch.equal(bowl.theta, torch.ones(4))


def test_a_rate_that_diverges_is_lowered_until_the_run_ends_well() -> None:
    """Thirty times above 2, where the bowl diverges, next to a run that was started well."""
    ends = []
    for lr in (1.0, 60.0):
        bowl = Bowl(lr)
        ensemble = guarded(bowl, hdet.Guard(min_steps=1))
        for _ in range(600):
            ensemble.step(bowl.step())
        ends.append(sum(float(bowl.loss().detach()) for _ in range(50)) / 50)
    assert 2 <= ensemble.num_roll_backs <= 6
    assert ensemble.base_values["lr/0"] < 2.0
    assert ends[1] < 1.03 * ends[0]


def test_without_it_the_same_run_is_lost() -> None:
    """Negative control."""
    bowl = Bowl(60.0)
    ensemble = guarded(bowl, None)
    for _ in range(600):
        ensemble.step(bowl.step())
    assert not bowl.theta.isfinite().all()
    assert ensemble.num_roll_backs == 0


def test_a_run_that_goes_well_is_not_touched() -> None:
    thetas = []
    for guard in (None, hdet.Guard(min_steps=1)):
        bowl = Bowl(0.5)
        ensemble = guarded(bowl, guard)
        for _ in range(100):
            ensemble.step(bowl.step())
        thetas.append(bowl.theta.detach().clone())
    assert ensemble.num_roll_backs == 0
    assert torch.equal(*thetas)


@pytest.mark.parametrize("where", ["parameter", "loss"])
def test_what_is_not_finite_is_not_waited_for(where: str) -> None:
    bowl = Bowl(0.5)
    ensemble = guarded(bowl, hdet.Guard(min_steps=1))
    for step in range(40):
        loss = bowl.step()
        if step == 25:
            if where == "parameter":
                bowl.theta.data[2] = math.nan
            else:
                loss = loss * math.inf
        ensemble.step(loss)
        if step == 19:
            kept = bowl.theta.detach().clone()
        if step == 29:
            assert torch.equal(bowl.theta, kept)
    assert ensemble.num_roll_backs == 1
    assert bowl.theta.isfinite().all()


def test_one_bad_cycle_is_waited_for() -> None:
    bowl = Bowl(0.5)
    ensemble = guarded(bowl, hdet.Guard(min_steps=1))
    for step in range(60):
        ensemble.step(bowl.step() * (10.0 if 20 <= step < 30 else 1.0))
    assert ensemble.num_roll_backs == 0
    for _ in range(20):
        ensemble.step(bowl.step() * 10.0)
    assert ensemble.num_roll_backs == 1


def test_it_stops_for_good_after_so_many() -> None:
    bowl = Bowl(0.5)
    ensemble = guarded(bowl, hdet.Guard(max_roll_backs=2))
    for _ in range(29):
        ensemble.step(bowl.step() * math.nan)
    assert ensemble.num_roll_backs == 2
    with pytest.raises(NonFiniteError, match=r"after 2 roll-backs.*look at the data"):
        ensemble.step(bowl.step() * math.nan)


def test_what_is_not_finite_is_no_result() -> None:
    """After the last cycle's end nothing goes back any more: a converge by hand says so."""
    bowl = Bowl(0.1)
    rates = [hdet.LearningRate(0, spread_ratio=0.2)]
    replicas = hdet.VirtualReplicas(2)
    ensemble = guarded(bowl, hdet.Guard(), hyperparameters=rates, replicas=replicas)
    for _ in range(13):
        bowl.step()
        ensemble.step(torch.ones(2))
    bowl.theta.data.fill_(math.nan)
    with pytest.raises(NonFiniteError, match="all 2 replicas"):
        ensemble.converge()


def test_bare_steps_are_guarded_against_what_is_not_finite() -> None:
    bowl = Bowl(1.0)
    guard = hdet.Guard(min_steps=1)
    scheduler = hdet.OneCycleLR(bowl.optimizer, 1.0, 400, cycle_steps=10, guard=guard)
    for step in range(400):
        bowl.step()
        if step == 100:
            bowl.theta.data[0] = math.nan
        scheduler.step()
    assert scheduler.ensemble.num_roll_backs == 1
    assert float(bowl.loss().detach()) < 1.01


def test_one_cycle_goes_on_with_its_schedule_at_a_lower_rate() -> None:
    bowl = Bowl(60.0)
    guard = hdet.Guard(min_steps=1)
    scheduler = hdet.OneCycleLR(bowl.optimizer, 60.0, 400, cycle_steps=10, guard=guard)
    plain = Bowl(60.0)
    reference = torch.optim.lr_scheduler.OneCycleLR(plain.optimizer, 60.0, 400)
    for _ in range(400):
        scheduler.step(bowl.step())
        plain.optimizer.step()
        reference.step()
    lowered = 0.3**scheduler.ensemble.num_roll_backs
    assert lowered < 1.0
    assert scheduler.get_last_lr()[0] == pytest.approx(lowered * reference.get_last_lr()[0])


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_auto_lr_starts_over_where_the_start_was_too_high(kind: str) -> None:
    ends = []
    for start in (1e-6, 100.0):
        bowl = Bowl(1.0, kind)
        controller = hdet.LongHorizonController(start_value=start)
        scheduler = hdet.AutoLR(bowl.optimizer, 800, controller=controller)
        for _ in range(800):
            scheduler.step(bowl.step())
        ends.append(sum(float(bowl.loss().detach()) for _ in range(50)) / 50)
    assert scheduler.ensemble.num_roll_backs > 0
    assert ends[1] < 1.03 * ends[0]


@pytest.mark.parametrize("stop", [5, 10, 17, 30])
def test_a_run_that_is_resumed_is_guarded_as_before(stop: int) -> None:
    def make() -> tuple[Bowl, hdet.Ensemble]:
        bowl = Bowl(60.0)
        return bowl, guarded(bowl, hdet.Guard(min_steps=1))

    bowl, ensemble = make()
    for _ in range(stop):
        ensemble.step(bowl.step())
    saved = copy.deepcopy((ensemble.state_dict(), bowl.optimizer.state_dict()))
    other, resumed = make()
    with torch.no_grad():
        other.theta.copy_(bowl.theta)
    other.optimizer.load_state_dict(saved[1])
    resumed.load_state_dict(saved[0])
    assert resumed.num_roll_backs == ensemble.num_roll_backs
    assert resumed.base_values == ensemble.base_values
    assert resumed.state_dict() == saved[0]


def test_virtual_replicas_go_back_together() -> None:
    bowl = Bowl(60.0)
    rates = [hdet.LearningRate(0, spread_ratio=0.2)]
    ensemble = guarded(
        bowl,
        hdet.Guard(min_steps=1),
        hyperparameters=rates,
        replicas=hdet.VirtualReplicas(4),
    )
    for _ in range(400):
        bowl.optimizer.zero_grad()
        losses = []
        for _, _ in ensemble.fan_out(torch.zeros(4, 1)):
            loss = bowl.loss()
            losses.append(loss.detach())
            (loss / 4).backward()
        bowl.optimizer.step()
        ensemble.step(torch.stack(losses))
    ensemble.converge()
    assert ensemble.num_roll_backs > 0
    assert float(bowl.loss().detach()) < 1.01
