"""Whether the rate can be relied on: pure noise, quadratics of known curvature, absurd starts."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import nn

import hdet
from tests import auto, quadratics
from tests.evidence import NO_EVIDENCE

NONE = torch.zeros(0, dtype=torch.float64)
BOUND = math.log(1.5)
PATIENCE = hdet.LongHorizonController().patience
PRICE = hdet.GradientProduct().noise_price


@functools.cache
def walks_on_noise(
    patience: float, *, pooled: bool = True, num_seeds: int = 200, num_cycles: int = 400
) -> torch.Tensor:
    """The log of the value after each cycle ``[seeds, cycles]``, from a value of 1.

    A cycle's trend is made as the signal makes it, of 16 samples whose two parts mean nothing;
    `test_the_signals_own_noise_is_as_assumed` says that they are like this. Without pooling each
    cycle stands for itself alone.
    """
    generator = torch.Generator().manual_seed(0)
    controller = hdet.LongHorizonController(patience=patience)
    walks = []
    for _ in range(num_seeds):
        state, base = {**hdet.LongHorizonController().init(), "climbing": 0.0}, 1.0
        drawn = torch.randn(2, num_cycles, 16, generator=generator, dtype=torch.float64)
        slopes = drawn[0] + PRICE * drawn[1]
        scales = drawn[0].mean(1).abs() + PRICE * drawn[1].mean(1).abs()
        table = [slopes.mean(1), slopes.std(1) / 4.0, scales]
        walk = []
        for slope, stderr, scale in torch.stack(table, dim=1).tolist():
            trend = hdet.Trend(slope, stderr, scale, alignment=-0.1, moved=0.1)
            if not pooled:
                state = {**state, **NO_EVIDENCE}
            state, base = controller.update(state, base, hdet.Evidence(1000, NONE, NONE, trend))
            walk.append(math.log(base))
        walks.append(walk)
    return torch.tensor(walks, dtype=torch.float64)


def test_pure_noise_never_takes_the_rate_out_of_the_positive_numbers() -> None:
    for patience in (PATIENCE, 1e9):
        assert walks_on_noise(patience).isfinite().all()


def test_pure_noise_leaves_the_rate_within_a_factor_of_three_halves() -> None:
    inside = (walks_on_noise(PATIENCE).abs() <= BOUND).all(dim=1).double().mean()
    assert inside >= 0.95


def test_without_shortening_strides_it_would_not_be() -> None:
    """Negative control: 84 % of 200 runs are. What is pooled averages most of the noise away."""
    inside = (walks_on_noise(1e9).abs() <= BOUND).all(dim=1).double().mean()
    assert inside < 0.9
    assert walks_on_noise(1e9)[:, -1].std() > 2.0 * walks_on_noise(PATIENCE)[:, -1].std()


def test_without_pooling_either_noise_would_carry_it_off() -> None:
    """Negative control."""
    ends = walks_on_noise(1e9, pooled=False)[:, -1]
    error = float(ends.std()) / math.sqrt(200)
    assert abs(float(ends.mean())) < 3.0 * error, "symmetric steps drift nowhere"
    assert (ends.abs() <= BOUND).double().mean() < 0.5, "but they diffuse"


def test_cycles_of_a_real_run_are_too_few_to_diffuse_as_far() -> None:
    """Cycles grow by a tenth: 10 000 steps after a climb of 100 have 42 of them."""
    controller, step, cycles = hdet.LongHorizonController(), 200, 0
    while step < 10_000:
        step += controller.next_cycle_steps({**controller.init(), "climbing": 0.0}, step)
        cycles += 1
    assert cycles == 42
    assert float(walks_on_noise(1e9, pooled=False)[:, cycles - 1].std()) < 1.5


def significances_of_noise(kind: str, seed: int, num_cycles: int = 25) -> list[float]:
    """z of each cycle, from gradients that are independent noise."""
    generator = torch.Generator().manual_seed(seed)
    param = nn.Parameter(torch.zeros(24))
    optimizer = getattr(torch.optim, kind)([param], lr=1e-3)
    signal = hdet.GradientProduct()
    signal.attach(optimizer, [0], lambda _: 1e-3)
    found = []
    for cycle in range(num_cycles):
        signal.reset(16)
        for _ in range(16):
            param.grad = torch.randn(24, generator=generator)
            optimizer.step()
        (trend,) = signal.trends([signal.statistics().tolist()], independent=False)
        if cycle > 3:
            found.append(trend.slope / trend.stderr)
    return found


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_the_signals_own_noise_is_as_assumed(kind: str) -> None:
    """z follows Student's t of 15 degrees of freedom, symmetric about 0."""
    found = torch.tensor([z for seed in range(24) for z in significances_of_noise(kind, seed)])
    error = 1.0 / math.sqrt(len(found))
    assert abs(float((found > 0.0).double().mean()) - 0.5) < 3.0 * 0.5 * error
    assert float(found.std()) == pytest.approx(math.sqrt(15 / 13), rel=0.12)
    assert 0.02 < float((found.abs() > 2.13).double().mean()) < 0.08


CELLS = [(c, n, s) for c in (10.0, 100.0, 1000.0) for n in (0.03, 0.3, 3.0) for s in (500,)]
UNDECIDED = (10.0, 0.03, 500)
"""The first decision would fall just behind the hold: the rate at which the climb ended is kept."""


@functools.cache
def ratios() -> dict[tuple[float, float, int], tuple[float, float]]:
    """Found over best, of the rate at the end of the hold and of the expected final loss."""
    pairs = {}
    for cell in CELLS:
        rate, loss = quadratics.best(*cell)
        own_rate, own_loss = quadratics.found(*cell)
        pairs[cell] = (own_rate / rate, own_loss / loss)
    return pairs


def test_on_quadratics_the_loss_is_near_the_best() -> None:
    decided = [pair for cell, pair in ratios().items() if cell != UNDECIDED]
    assert len(decided) == 8
    assert max(loss for _, loss in decided) < 2.0
    assert all(0.5 < rate < 4.0 for rate, _ in decided)


def test_a_quadratic_on_which_nothing_is_decided_in_time() -> None:
    rate, loss = ratios()[UNDECIDED]
    own_rate, _ = quadratics.found(*UNDECIDED, stride=0.0)
    assert own_rate == rate * quadratics.best(*UNDECIDED)[0], "the balance never moved it"
    assert rate < 17.0
    assert loss < 4.5


@pytest.mark.xfail(
    strict=True,
    reason="10 of 54 runs, of seeds 0 to 2 at 500 and 2000 steps; up to 16 times too high",
)
def test_on_quadratics_the_rate_is_within_a_factor_of_two_of_the_best() -> None:
    assert all(0.5 <= rate <= 2.0 for rate, _ in ratios().values())


def test_a_rate_that_nobody_steers_is_far_from_the_best() -> None:
    """Negative control: the climb ends at once, and the balance has no stride."""
    cell = (100.0, 0.03, 500)
    rate, loss = quadratics.best(*cell)
    own_rate, own_loss = quadratics.found(*cell, stride=0.0, start_value=1e-3, climb_steps=200)
    assert own_rate < rate / 6.0
    assert own_loss > 2.5 * loss


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("start", [1e-9, 1e-1])
def test_absurd_starts_end_in_a_good_run(start: float, kind: str) -> None:
    losses = []
    for value in (1e-6, start):
        controller = hdet.LongHorizonController(start_value=value, climb_end=333)
        run = auto.Run(1000, kind, controller=controller)
        rates = run.train(range(1000))
        assert rates[0][0] == value
        held_out = [float(auto.loss_of(run.model, 5000 + i).detach()) for i in range(20)]
        losses.append(sum(held_out) / 20)
    untrained = auto.model_of()
    before = sum(float(auto.loss_of(untrained, 5000 + i).detach()) for i in range(20)) / 20
    assert losses[0] < 0.4 * before
    assert losses[1] < max(1.5 * losses[0], 0.3 * before)


@pytest.mark.parametrize("start", [1e-9, 1e-1])
def test_absurd_starts_on_a_quadratic(start: float) -> None:
    cell = (100.0, 0.03, 500)
    _, loss = quadratics.best(*cell)
    _, own_loss = quadratics.found(*cell, start_value=start)
    assert own_loss < 2.5 * loss
