"""`Probe` and `PairedProbe`: differences of a loss, and nothing left behind."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from tests import training
from tests.pool import Pool
from tests.slopes import Recorder

CYCLE = 12
PROBED = [i for i in range(CYCLE) if (i + 1) * 8 // CYCLE > i * 8 // CYCLE]
"""The steps of a cycle at which one of eight pairs is due."""


class Quadratic(nn.Module):
    """sum of a_i (x_i - 3)^2 / 2, times the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.arange(4.0, dtype=torch.float64))
        self.register_buffer("curvature", torch.tensor([1.0, 0.5, 0.1, 2.0]).double())

    def forward(self, weight: float) -> torch.Tensor:
        found: torch.Tensor = weight * 0.5 * (self.curvature * (self.x - 3.0).square()).sum()
        return found


def probed(
    model: nn.Module, probe: hdet.Probe, **settings: Any
) -> tuple[torch.optim.Optimizer, hdet.Ensemble, Recorder]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = Recorder(CYCLE)
    replicas = settings.pop("replicas", None)
    spread = settings.pop("spread_ratio", 0.0)
    ensemble = hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=spread)],
        signal=hdet.PairedProbe(probe, **settings),
        controller=recorder,
        replicas=replicas,
        model=model,
    )
    return optimizer, ensemble, recorder


def train(ensemble: hdet.Ensemble, loss: Any, num_steps: int = CYCLE) -> None:
    for _ in range(num_steps):
        ensemble.optimizer.zero_grad()
        loss().backward()
        ensemble.optimizer.step()
        ensemble.step()


def last_trend(recorder: Recorder) -> hdet.Trend:
    trend = recorder.seen[-1].trend
    assert trend is not None
    return trend


def slopes_seen(signal: hdet.PairedProbe, models: list[Quadratic]) -> list[list[float]]:
    """<gradient of weight 1, u> of each group, filled in at each step that follows."""
    seen: list[list[float]] = []

    def look(*_: Any) -> None:
        own = []
        for trail, model in zip(signal._trails, models, strict=True):
            (present,), (recent,), (older,) = trail.at(slice(None))
            path = (recent - older) + 0.2 * (present - recent)
            own.append(float((model.curvature * (present - 3.0)) @ path))
        seen.append(own)

    assert signal._optimizer is not None
    signal._optimizer.register_step_pre_hook(look)  # after the signal's own
    return seen


def test_on_a_quadratic_the_difference_is_the_analytic_slope() -> None:
    model = Quadratic()
    weights = [0.5, 1.0, 2.0, 4.0]
    _, ensemble, recorder = probed(model, hdet.Probe(model, weights), num_pairs=8)
    seen = slopes_seen(ensemble.signal, [model])
    train(ensemble, lambda: model(1.0))
    at = [seen[i] for i in PROBED]
    # An antithetic difference of a quadratic has no error of higher order.
    expected = [weight * own for weight, (own,) in zip(weights * 2, at, strict=True)]
    trend = last_trend(recorder)
    assert trend.samples == pytest.approx(expected, rel=1e-9)
    assert trend.slope == pytest.approx(sum(expected) / 8)
    spread = torch.tensor(expected, dtype=torch.float64).std()
    assert trend.stderr == pytest.approx(float(spread) / math.sqrt(8))
    assert trend.slope < 0.0


def test_pairs_are_spread_over_the_steps_of_a_cycle() -> None:
    model = Quadratic()
    asked: list[int] = []

    def loss(weight: float) -> torch.Tensor:
        asked.append(ensemble.num_steps)
        found: torch.Tensor = model(weight)
        return found

    _, ensemble, _ = probed(model, hdet.Probe(loss, [1.0]), num_pairs=4)
    train(ensemble, lambda: model(1.0))
    assert asked == [2, 2, 5, 5, 8, 8, 11, 11]


def test_gradients_judge_cycles_too_short_to_probe() -> None:
    model = Quadratic()
    _, ensemble, recorder = probed(model, hdet.Probe(model, [1.0]), min_steps=CYCLE + 1)
    train(ensemble, lambda: model(1.0))
    assert last_trend(recorder).samples == ()
    assert last_trend(recorder).slope < 0.0


def test_groups_have_differences_of_their_own() -> None:
    torch.manual_seed(0)
    first, second = Quadratic(), Quadratic()
    optimizer = torch.optim.SGD(
        [{"params": own.parameters(), "lr": lr} for own, lr in ((first, 0.01), (second, 0.03))]
    )
    recorder = Recorder(CYCLE)
    ensemble = hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0), hdet.LearningRate(1)],
        signal=hdet.PairedProbe(
            hdet.Probe(lambda weight: first(weight) + 3.0 * second(weight), [1.0]), per_group=True
        ),
        controller=recorder,
    )
    seen = slopes_seen(ensemble.signal, [first, second])
    train(ensemble, lambda: first(1.0) + 3.0 * second(1.0))
    means = [sum(own) / 8 for own in zip(*(seen[i] for i in PROBED), strict=True)]
    slopes = [means[0], 3.0 * means[1]]
    assert [own.slope for own in recorder.trends(2)[0]] == pytest.approx(slopes, rel=1e-6)


class Noisy(nn.Module):
    """Dropout and BatchNorm: random numbers and buffers to disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x).square().mean()
        return out


def test_nothing_is_left_behind() -> None:
    torch.manual_seed(0)
    model = Noisy()
    x = torch.randn(8, 3)
    calls: list[torch.Tensor] = []

    def loss(batch: torch.Tensor) -> torch.Tensor:
        calls.append(torch.get_rng_state())
        found: torch.Tensor = model(batch)
        return found

    _, ensemble, recorder = probed(model, hdet.Probe(loss, [x]))
    train(ensemble, lambda: model(x), CYCLE - 1)
    ensemble.optimizer.zero_grad()
    model(x).backward()
    ensemble.optimizer.step()
    before = copy.deepcopy((model.state_dict(), torch.get_rng_state()))
    gradients = [param.grad.clone() for param in model.parameters()]
    ensemble.step()
    assert len(calls) == 16, "it did probe"
    assert len(last_trend(recorder).samples) == 8
    assert torch.equal(torch.get_rng_state(), before[1])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[0][name]), name
    for param, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(param.grad, gradient)
    states = [tuple(state.tolist()) for state in calls]
    assert all(a == b for a, b in zip(states[::2], states[1::2], strict=True)), "pairs share them"
    assert len(set(states)) == 8, "and no two pairs do"


def test_a_loss_that_raises_leaves_the_model_as_it_was() -> None:
    model = Noisy()
    x = torch.randn(8, 3)

    def loss(batch: torch.Tensor) -> torch.Tensor:
        model(batch)
        raise RuntimeError("out of memory")

    _, ensemble, _ = probed(model, hdet.Probe(loss, [x]))
    train(ensemble, lambda: model(x), PROBED[0])
    model(x).backward()
    before = copy.deepcopy((model.state_dict(), torch.get_rng_state()))
    with pytest.raises(RuntimeError, match="out of memory"):
        ensemble.optimizer.step()
    assert torch.equal(torch.get_rng_state(), before[1])
    assert all(torch.equal(own, before[0][name]) for name, own in model.state_dict().items())


def test_the_members_would_differ_with_other_random_numbers() -> None:
    """Negative control: at the same point, two draws of dropout are far apart."""
    torch.manual_seed(0)
    model = Noisy()
    x = torch.randn(8, 3)
    with torch.no_grad():
        losses = [float(model(x)) for _ in range(2)]
    assert abs(losses[0] - losses[1]) > 1e-2 * losses[0]


def test_batches_start_again_at_their_end() -> None:
    probe = hdet.Probe(lambda batch: torch.tensor(float(batch)), [1, 2, 3])
    assert [probe.draw() for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]


def test_a_data_loader_serves() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(5.0))
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    probe = hdet.Probe(lambda batch: batch[0].mean(), loader)
    drawn = torch.cat([probe.draw()[0] for _ in range(3)])
    assert sorted(drawn.tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert float(probe.evaluate(probe.draw())) >= 0.0


def test_a_generator_serves_until_its_end_only() -> None:
    def batches() -> Iterator[int]:
        yield from range(2)

    probe = hdet.Probe(lambda batch: torch.tensor(0.0), batches())
    assert [probe.draw(), probe.draw()] == [0, 1]
    with pytest.raises(hdet.errors.InvalidValueError, match="rather than a generator"):
        probe.draw()


def test_a_loss_that_is_not_finite_leaves_the_judgement_to_the_gradients() -> None:
    model = Quadratic()
    probe = hdet.Probe(lambda weight: model(weight) * math.nan, [1.0])
    _, ensemble, recorder = probed(model, probe)
    train(ensemble, lambda: model(1.0))
    assert last_trend(recorder).samples == ()
    assert math.isfinite(last_trend(recorder).slope)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_virtual_replicas_tell_each_pair_once_and_are_not_disturbed(
    kind: str, spread: float
) -> None:
    def run(*, asks: bool) -> tuple[torch.Tensor, hdet.Trend]:
        torch.manual_seed(0)
        model = training.Net(batch_norm=True)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)
        recorder = Recorder(CYCLE)
        probe = hdet.Probe(lambda b: training.loss_fn(model, *b), [_batch(99), _batch(98)])
        ensemble = hdet.Ensemble(
            optimizer,
            hyperparameters=[hdet.LearningRate(0, spread_ratio=spread)],
            signal=hdet.PairedProbe(probe) if asks else hdet.GradientProduct(),
            controller=recorder,
            replicas=hdet.VirtualReplicas(4),
            model=model,
        )
        for step in range(2 * CYCLE):
            for _, (x, y) in ensemble.fan_out(_batch(step)):
                (training.loss_fn(model, x, y) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
            ensemble.step()
        return training.flat(model), last_trend(recorder)

    asked, trend = run(asks=True)
    assert torch.equal(asked, run(asks=False)[0])
    assert len(trend.samples) == 8
    assert trend.stderr == pytest.approx(
        float(torch.tensor(trend.samples).double().std()) / math.sqrt(8), rel=1e-6
    )


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return training.batch(step, 4, torch.float32)


def probed_on_a_rank(rank: int, num_pairs: int) -> tuple[list[float], float, float]:
    torch.manual_seed(0)
    model = Quadratic()
    batches = [1.0 + rank + 0.1 * i for i in range(20)]
    _, ensemble, recorder = probed(model, hdet.Probe(model, batches), num_pairs=num_pairs)
    train(ensemble, lambda: model(1.0))
    trend = last_trend(recorder)
    return list(trend.samples), trend.slope, trend.stderr


@pytest.mark.distributed
@pytest.mark.parametrize(("size", "expected"), [(1, 8), (2, 8), (3, 9)])
def test_every_rank_adds_its_pairs(pool: Pool, size: int, expected: int) -> None:
    found = pool.run(probed_on_a_rank, size, 8)
    assert len({tuple(samples) for samples, _, _ in found}) == 1, "all ranks know all pairs"
    samples, slope, stderr = found[0]
    assert len(samples) == len(set(samples)) == expected
    assert slope == pytest.approx(sum(samples) / expected)
    spread = float(torch.tensor(samples, dtype=torch.float64).std())
    assert stderr == pytest.approx(spread / math.sqrt(expected))
