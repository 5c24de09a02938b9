"""`GradientProduct` against a literal reference, and what a training does around it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from tests.slopes import Moment, Recorder, literal_trends

CYCLE = 12


class Training:
    """A small model in two groups, and a record of what each step's gradients were."""

    def __init__(
        self, kind: str = "sgd", *, rates: tuple[float, float] = (0.05, 0.02), **signal: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        groups = [
            {"params": list(self.model[0].parameters()), "lr": rates[0]},
            {"params": list(self.model[2].parameters()), "lr": rates[1]},
        ]
        kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        self.optimizer = kinds[kind](groups, **({"momentum": 0.9} if kind == "sgd" else {}))
        self.recorder = Recorder()
        self.signal = hdet.GradientProduct(**signal)
        self.ensemble = hdet.Ensemble(
            self.optimizer,
            hyperparameters=[hdet.LearningRate(0), hdet.LearningRate(1)],
            signal=self.signal,
            controller=self.recorder,
            cycle_steps=CYCLE,
        )
        self.history: list[Moment] = []

    def loss(self, step: int) -> torch.Tensor:
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step)).double()
        found: torch.Tensor = (self.model(x) - x[:, :1]).square().mean()
        return found

    def note(self) -> None:
        """Before an optimiser step: parameters without a gradient are not in it."""
        points, gradients = [], []
        for group in self.optimizer.param_groups:
            members = [p for p in group["params"] if p.grad is not None]
            points.append([float(v) for p in members for v in p.detach().reshape(-1)])
            flat = [float(v) for p in members for v in p.grad.reshape(-1)]
            gradients.append(flat or None)
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.history.append(Moment(points, gradients, rates))

    def run(self, num_steps: int) -> None:
        for step in range(num_steps):
            self.optimizer.zero_grad()
            self.loss(step).backward()
            self.note()
            self.optimizer.step()
            self.ensemble.step()

    def check(self, *, per_group: bool = False, num_samples: int = 16) -> None:
        found = self.recorder.trends(2)
        expected = literal_trends(
            self.history, cycle_steps=CYCLE, num_samples=num_samples, per_group=per_group
        )
        assert len(found) == len(expected) > 0
        for own, literal in zip(found, expected, strict=True):
            for trend, other in zip(own, literal if per_group else literal * 2, strict=True):
                assert tuple(trend)[:5] == pytest.approx(other, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("per_group", [False, True])
@pytest.mark.parametrize("num_samples", [2, 5, 16])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_several_cycles_equal_the_literal_reference(
    kind: str, num_samples: int, per_group: bool
) -> None:
    training = Training(kind, num_samples=num_samples, per_group=per_group)
    training.run(5 * CYCLE)
    training.check(per_group=per_group, num_samples=num_samples)
    first, second = training.recorder.trends(2)[-1]
    assert (first == second) is not per_group


@pytest.mark.parametrize("other", [{"noise_price": 0.1}, {"older_window": 1.0}])
def test_the_reference_hears_the_price_of_noise_and_the_window(other: dict[str, float]) -> None:
    """Negative control of the comparison above."""
    training = Training(**other)
    training.run(2 * CYCLE)
    with pytest.raises(AssertionError):
        training.check()


def test_the_slope_points_down_while_a_quadratic_is_far_from_its_minimum() -> None:
    training = Training()
    training.run(CYCLE)
    trend = training.recorder.trends(2)[0][0]
    assert trend.slope < 0.0
    assert trend.alignment < 0.0
    assert 0.0 < trend.moved < 1.0


def test_parameters_without_a_gradient_do_not_count() -> None:
    training = Training(per_group=True)
    training.model[0].requires_grad_(False)
    training.run(2 * CYCLE)
    for own in training.recorder.trends(2):
        assert own[0].slope == own[0].scale == 0.0
        assert math.isnan(own[0].alignment), "no gradient is no reason to end a climb"
        assert own[1].slope != 0.0


def test_a_parameter_that_starts_without_a_gradient_joins_later() -> None:
    training = Training()
    bias = training.model[0].bias.requires_grad_(False)
    training.run(CYCLE)
    bias.requires_grad_(True)
    training.run(CYCLE)
    assert len(training.history[0].points[0]) + 4 == len(training.history[-1].points[0])
    assert all(math.isfinite(own.slope) for cycle in training.recorder.trends(2) for own in cycle)


def test_accumulated_gradients_are_seen_whole() -> None:
    training = Training()
    for step in range(2 * CYCLE):
        training.optimizer.zero_grad()
        for part in range(3):
            (training.loss(3 * step + part) / 3).backward()
        training.note()
        training.optimizer.step()
        training.ensemble.step()
    training.check()


def test_clipped_gradients_are_what_is_seen() -> None:
    training = Training()
    for step in range(2 * CYCLE):
        training.optimizer.zero_grad()
        training.loss(step).backward()
        before = training.model[0].weight.grad.clone()
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.05)
        assert not torch.equal(before, training.model[0].weight.grad)
        training.note()
        training.optimizer.step()
        training.ensemble.step()
    training.check()


@pytest.mark.parametrize("where", ["before backward", "after step", "after the scheduler"])
def test_where_gradients_are_cleared_does_not_matter(where: str) -> None:
    training, other = Training(), Training()
    training.run(2 * CYCLE)
    for step in range(2 * CYCLE):
        if where == "before backward":
            other.optimizer.zero_grad(set_to_none=False)
        other.loss(step).backward()
        other.optimizer.step()
        if where == "after step":
            other.optimizer.zero_grad()
        other.ensemble.step()
        if where == "after the scheduler":
            other.optimizer.zero_grad()
    assert other.recorder.trends(2) == training.recorder.trends(2)


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_changes_nothing_and_a_skipped_step_is_not_sampled(fused: bool) -> None:
    def run(*, scaled: bool) -> list[list[hdet.Trend]]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        recorder = Recorder()
        signal = hdet.GradientProduct()
        ensemble = hdet.Ensemble(
            optimizer,
            hyperparameters=[hdet.LearningRate(0)],
            signal=signal,
            controller=recorder,
            cycle_steps=CYCLE,
        )
        scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=2.0**12)
        for step in itertools.takewhile(lambda _: not recorder.seen, itertools.count()):
            x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step))
            overflows = step in (3, 7)
            if overflows and not scaled:
                continue
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean() * (math.inf if overflows else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            ensemble.step()
        return recorder.trends(1)

    (plain,), (scaled,) = run(scaled=False), run(scaled=True)
    # A fused step is called even where its kernel skips it: it counts, and so does its rate.
    tolerance = 0.3 if fused else 1e-3
    assert tuple(scaled[0])[:4] == pytest.approx(tuple(plain[0])[:4], rel=tolerance)
    assert math.isfinite(scaled[0].stderr)


def test_a_step_that_calls_its_parents_is_sampled_once() -> None:
    class Loud(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    torch.optim.SGD([nn.Parameter(torch.ones(1))])  # its step is hooked from here on
    param = nn.Parameter(torch.ones(2))
    optimizer = Loud([param], lr=0.1)
    signal = hdet.GradientProduct()
    signal.attach(optimizer, [0], lambda position: 0.1)
    signal.reset(10)
    for _ in range(4):
        param.grad = torch.ones(2)
        optimizer.step()
    assert len(signal._samples) == signal._seen == 4


@pytest.mark.parametrize("num_steps", [2, 15, 16, 31, 32, 100, 1000])
def test_samples_are_bounded_and_spread_evenly(num_steps: int) -> None:
    param = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([param], lr=0.1)
    signal = hdet.GradientProduct(num_samples=16)
    signal.attach(optimizer, [0], lambda position: 0.1)
    signal.reset(num_steps)
    taken = []
    for step in range(num_steps):
        param.grad = torch.ones(2)
        before = len(signal._samples)
        optimizer.step()
        if len(signal._samples) > before:
            taken.append(step)
    assert min(num_steps, 16) <= len(taken) < 32
    assert len({b - a for a, b in itertools.pairwise(taken)}) == 1


def test_nothing_is_sampled_once_frozen() -> None:
    training = Training()
    training.run(CYCLE + 5)
    assert len(training.signal._samples) == 5
    training.ensemble.freeze()
    mass = training.signal._trails[0]._mass
    training.run(3 * CYCLE)
    assert training.signal._samples == []
    assert training.signal._trails[0]._mass == mass
    assert len(training.recorder.trends(2)) == 1, "and the controller is not asked"


def test_nothing_is_read_from_the_device_inside_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    training.run(CYCLE)

    def refuse(tensor: torch.Tensor, *_: Any) -> Any:
        raise AssertionError("waited for the device")

    def forbid() -> None:
        for name in ("item", "tolist", "__float__", "__int__", "__bool__", "numpy", "cpu"):
            monkeypatch.setattr(torch.Tensor, name, refuse)

    for step in range(CYCLE - 1):
        training.optimizer.zero_grad()
        training.loss(step).backward()
        forbid()
        training.signal._before_step(training.optimizer)
        training.signal._after_step()
        training.ensemble._updates.note()
        training.ensemble.step()
        monkeypatch.undo()
    forbid()  # the end of the cycle does read: the patch would have told
    training.ensemble._updates.note()
    with pytest.raises(AssertionError, match="waited"):
        training.ensemble.step()


def test_a_gradient_of_zero_and_a_rate_of_zero_say_nothing() -> None:
    training = Training(rates=(0.0, 0.0))
    training.run(2 * CYCLE)
    for own in training.recorder.trends(2):
        assert own[0].slope == 0.0
        assert math.isnan(own[0].alignment)


def test_one_step_is_too_few_for_a_slope() -> None:
    param = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([param], lr=0.1)
    signal = hdet.GradientProduct()
    signal.attach(optimizer, [0], lambda position: 0.1)
    signal.reset(1)
    param.grad = torch.ones(2)
    optimizer.step()
    (trend,) = signal.trends([signal.statistics().tolist()], independent=False)
    assert all(math.isnan(own) for own in tuple(trend)[:5])
    assert signal.trends([], independent=False) == []


def test_replicas_with_gradients_of_their_own_are_more_certain() -> None:
    signal = hdet.GradientProduct()
    signal.attach(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1), [0], lambda _: 0.1)
    rows = [[-1.0, 2.0, 0.04, -0.5, 0.1], [-3.0, 2.0, 0.04, -0.5, 0.1]]
    (own,) = signal.trends(rows, independent=True)
    (shared,) = signal.trends(rows, independent=False)
    assert own.slope == shared.slope == -2.0
    assert own.stderr == pytest.approx(math.sqrt(0.04 / 2))
    assert shared.stderr == pytest.approx(0.2)
