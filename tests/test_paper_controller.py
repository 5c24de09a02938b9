"""`PaperController`: Eq. 7 wherever that leaves a rate, and a positive rate always."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hdet
from tests import reference


def evidence(values_R: torch.Tensor, losses_R: torch.Tensor) -> hdet.Evidence:
    return hdet.Evidence(step=0, values_R=values_R, losses_R=losses_R)


def run_on_noise(seed: int, *, num_cycles: int = 400) -> list[float]:
    """Base values under losses that say nothing about the rate, at a spread of 1/2."""
    generator = torch.Generator().manual_seed(seed)
    controller = hdet.PaperController(temperature=0.002)
    state, base = controller.init(), 1.0
    rho = hdet.functional.spread_multipliers(8, 0.5)
    bases = []
    for cycle in range(num_cycles):
        values_R = base * rho[hdet.functional.permutation(seed, cycle, 0, 8)]
        losses_R = 3.0 + 0.01 * torch.randn(8, generator=generator, dtype=torch.float64)
        state, base = controller.update(state, base, evidence(values_R, losses_R))
        bases.append(base)
    return bases


def test_pure_noise_never_takes_the_rate_to_zero() -> None:
    for seed in range(50):
        bases = run_on_noise(seed)
        assert all(0.0 < base < float("inf") for base in bases), seed


def test_equation_7_as_printed_does() -> None:
    """Negative control: 74 % of runs in `docs/method.md`, from the same noise."""
    dead = 0
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        velocity, base = 0.0, 1.0
        rho = reference.multipliers(8, 0.5)
        for cycle in range(400):
            order = hdet.functional.permutation(seed, cycle, 0, 8).tolist()
            values = [base * rho[own] for own in order]
            losses = (3.0 + 0.01 * torch.randn(8, generator=generator).double()).tolist()
            delta = reference.delta(values, reference.weights(losses, 0.002))
            velocity, base = reference.meta_update(velocity, delta, base, 0.9, 0.5, 0.0)
            if base <= 0.0:
                dead += 1
                break
    assert dead > 25


@given(
    st.floats(-1.0, 1.0),
    st.floats(1e-9, 1e3),
    st.lists(st.floats(-5, 5), min_size=1, max_size=8),
    st.floats(0.0, 0.95),
    st.floats(0.0, 1.0),
)
def test_one_update_is_equation_7_or_the_rescue(
    relative_velocity: float, base: float, losses: list[float], gamma: float, lam: float
) -> None:
    controller = hdet.PaperController(base_decay=gamma, meta_lr=lam)
    rho = hdet.functional.spread_multipliers(len(losses), 0.3)
    velocity = relative_velocity * base
    state, found = controller.update(
        {"velocity": velocity},
        base,
        evidence(base * rho, torch.tensor(losses, dtype=torch.float64)),
    )
    delta = reference.delta((base * rho).tolist(), reference.weights(losses, 0.1))
    v, literal = reference.meta_update(velocity, delta, base, 0.9, lam, gamma)
    assert found > 0
    if literal > 1e-12 * base:
        assert found == pytest.approx(literal, rel=1e-6)
        assert state["velocity"] == pytest.approx(v, abs=1e-12 * base)
    elif literal < -1e-12 * base:
        assert found == pytest.approx(base * (1 - gamma) * 0.1)
        assert state["velocity"] == 0.0


def test_a_cycle_without_losses_only_decays() -> None:
    controller = hdet.PaperController(base_decay=0.5)
    none = torch.zeros(0, dtype=torch.float64)
    assert controller.update({"velocity": 0.0}, 1.0, evidence(none, none)) == (
        {"velocity": 0.0},
        0.5,
    )


@pytest.mark.parametrize(
    ("start", "decay", "low", "high", "expected"),
    [(0.3, 0.5, 0.2, 1.0, 0.2), (0.04, -0.5, 0.0, 0.05, 0.05)],
)
def test_base_values_stay_within_bounds(
    start: float, decay: float, low: float, high: float, expected: float
) -> None:
    param = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([param], lr=start)
    ensemble = hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1, bounds=(low, high))],
        controller=hdet.PaperController(base_decay=decay),
        cycle_steps=1,
        replicas=hdet.VirtualReplicas(2),
    )
    optimizer.step()
    ensemble.step([1.0, 1.0])
    assert ensemble.base_values["lr/0"] == expected


def test_the_better_replicas_pull_the_rate_their_way() -> None:
    """A closed loop: a cycle's loss is lowest at a rate of 0.5, and the base value gets there."""
    for start in (0.1, 1.5):
        controller = hdet.PaperController(temperature=0.002, meta_lr=0.5)
        state, base = controller.init(), start
        rho = hdet.functional.spread_multipliers(8, 1 / 9)
        for cycle in range(300):
            values_R = base * rho[hdet.functional.permutation(0, cycle, 0, 8)]
            losses_R = (values_R.log() - torch.tensor(0.5).log()) ** 2
            state, base = controller.update(state, base, evidence(values_R, losses_R))
        assert base == pytest.approx(0.5, rel=0.2)


def test_repr_shows_every_setting() -> None:
    settings: dict[str, Any] = {
        "start_step": 3,
        "temperature": 0.2,
        "meta_lr": 0.4,
        "meta_momentum": 0.8,
        "base_decay": 0.1,
        "rescue_ratio": 0.7,
    }
    shown = repr(hdet.PaperController(**settings))
    assert all(f"{name}={value}" in shown for name, value in settings.items())
