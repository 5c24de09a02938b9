"""`Ensemble`: planned values of every kind, custom stages, resume."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hdet

Factory = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]

SCHEDULERS: dict[str, Factory] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, gamma=0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda s: 1 / (1 + s)),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=10),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 20, power=2.0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=25),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 5), lr_scheduler.ExponentialLR(o, 0.9)], [5]
    ),
}


def sgd(*, tensor: bool = False) -> torch.optim.Optimizer:
    def rate(value: float) -> Any:
        return torch.tensor(value, dtype=torch.float64) if tensor else value

    groups = [
        {"params": [nn.Parameter(torch.ones(2))], "lr": rate(0.1)},
        {"params": [nn.Parameter(torch.ones(2))], "lr": rate(0.02)},
    ]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


BOTH = [hdet.LearningRate(0, spread_ratio=0.5), hdet.LearningRate(1, spread_ratio=0.2)]


def explored(optimizer: torch.optim.Optimizer, **settings: Any) -> hdet.Ensemble:
    defaults: dict[str, Any] = {
        "hyperparameters": BOTH,
        "cycle_steps": 4,
        "replicas": hdet.VirtualReplicas(3),
    }
    return hdet.Ensemble(optimizer, **{**defaults, **settings})


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_any_torch_scheduler_plans_the_base_rates(name: str, tensor: bool) -> None:
    if tensor and name in ("CyclicLR",):
        tensor = False  # CyclicLR itself replaces the tensor by a float
    plain, ours = sgd(tensor=tensor), sgd(tensor=tensor)
    theirs = SCHEDULERS[name](plain)
    ensemble = explored(ours, schedule=SCHEDULERS[name](ours))
    for step in range(20):
        assert list(ensemble.base_values.values()) == pytest.approx(rates(plain), rel=1e-12), step
        highest = max(ensemble.replica_values(r)["lr/0"] for r in range(3))
        assert highest == pytest.approx(1.5 * rates(plain)[0], rel=1e-12)
        plain.step()
        theirs.step()
        ours.step()
        ensemble.step([1.0, 1.0, 1.0])


def test_a_scheduler_with_a_spread_on_this_process_is_not_compounded() -> None:
    """ExponentialLR computes the next rate from the one it finds: it must find the planned one."""

    class Second(hdet.VirtualReplicas):
        """One process that takes itself for replica 1 of 2."""

        @property
        def replica(self) -> int:
            return 1

        def gather(self, rows_LK: torch.Tensor) -> torch.Tensor:
            return rows_LK.repeat(2, 1)

        def gather_objects(self, item: Any) -> list[Any]:
            return [item, item]

        def all_reduce(self, flat: torch.Tensor) -> Any:
            flat.mul_(2)
            return super().all_reduce(flat)

    optimizer = sgd()
    ensemble = explored(
        optimizer,
        schedule=lr_scheduler.ExponentialLR(optimizer, 0.9),
        replicas=Second(2),
        cycle_steps=1000,
    )
    for step in range(10):
        assert rates(optimizer) == pytest.approx([0.15 * 0.9**step, 0.024 * 0.9**step])
        optimizer.step()
        ensemble.step(1.0)


def test_closed_forms_scale_each_groups_own_rate() -> None:
    optimizer = sgd()
    shape = functools.partial(hdet.functional.hold_then_anneal, total_steps=20, anneal=0.5)
    ensemble = explored(optimizer, schedule=shape)
    for step in range(20):
        assert rates(optimizer) == pytest.approx([0.1 * shape(step), 0.02 * shape(step)])
        optimizer.step()
        ensemble.step([1.0, 2.0, 3.0])


def test_without_a_schedule_rates_are_held_and_groups_left_out_are_not_touched() -> None:
    optimizer = sgd()
    ensemble = explored(optimizer, hyperparameters=[hdet.LearningRate(1, spread_ratio=0.5)])
    for _ in range(9):
        optimizer.step()
        ensemble.step()
    assert rates(optimizer) == [0.1, 0.02]
    assert set(ensemble.base_values) == {"lr/1"}
    assert ensemble.num_steps == 9


def test_groups_have_their_own_spread_and_permutation() -> None:
    optimizer = sgd()
    ensemble = explored(optimizer, replicas=hdet.VirtualReplicas(8), cycle_steps=1)
    rho = [hdet.functional.spread_multipliers(8, ratio) for ratio in (0.5, 0.2)]
    orders = set()
    for cycle in range(1, 30):
        optimizer.step()
        ensemble.step([1.0] * 8)
        for index, base in enumerate([0.1, 0.02]):
            order = hdet.functional.permutation(0, cycle, index, 8)
            expected = (base * rho[index][order]).tolist()
            found = [ensemble.replica_values(r)[f"lr/{index}"] for r in range(8)]
            assert found == pytest.approx(expected, rel=1e-15)
            orders.add(tuple(order.tolist()))
    assert len(orders) == 58


@pytest.mark.parametrize("name", ["closed form", "ExponentialLR", "CosineAnnealingLR"])
def test_resumed_equals_uninterrupted(name: str) -> None:
    def build() -> hdet.Ensemble:
        optimizer = sgd()
        schedule: Any = functools.partial(hdet.functional.cosine, total_steps=40)
        if name != "closed form":
            schedule = SCHEDULERS[name](optimizer)
        controller = hdet.PaperController(start_step=12, temperature=0.05)
        return explored(optimizer, schedule=schedule, controller=controller)

    def run(ensemble: hdet.Ensemble, steps: range) -> list[dict[str, float]]:
        seen = []
        for step in steps:
            ensemble.optimizer.step()
            ensemble.step([1.0, 1.1 + 0.1 * (step % 3), 1.2])
            seen += [ensemble.replica_values(r) for r in range(3)]
        return seen

    for stop in (8, 16):
        whole = build()
        run(whole, range(stop))
        state = whole.state_dict()
        rest = run(whole, range(stop, 30))
        resumed = build()
        resumed.load_state_dict(state)
        assert run(resumed, range(stop, 30)) == rest
        assert run(build(), range(stop, 30)) != rest  # negative control


def test_losses_can_be_handed_over_before_a_bare_step() -> None:
    optimizer = sgd()
    controller = hdet.PaperController(temperature=0.05)
    one, other = (explored(o, controller=controller) for o in (optimizer, sgd()))
    for _ in range(8):
        for ensemble in (one, other):
            ensemble.optimizer.step()
        one.step([3.0, 2.0, 1.0])
        other.observe([3.0, 2.0, 1.0])
        other.step()
    assert one.base_values == other.base_values
    assert one.base_values["lr/0"] > 0.1


def test_a_controller_and_a_signal_of_the_users_own() -> None:
    class Halve(hdet.AbstractController):
        @property
        def start_step(self) -> int:
            return 0

        def init(self) -> dict[str, float]:
            return {"count": 0.0}

        def update(
            self, state: dict[str, float], base: float, evidence: hdet.Evidence
        ) -> tuple[dict[str, float], float]:
            assert evidence.losses_R.tolist() == [7.0, 7.0, 7.0]
            assert float(evidence.values_R.mean()) == pytest.approx(base)
            return {"count": state["count"] + 1}, base / 2

    class Constant(hdet.AbstractSignal):
        @property
        def needs_loss(self) -> bool:
            return False

        def observe(self, losses_L: torch.Tensor) -> None:
            raise AssertionError("nothing is observed")

        def measure(self, num_local: int, device: torch.device) -> torch.Tensor:
            return torch.full((num_local,), 7.0, device=device)

        def reset(self, num_steps: int) -> None:
            pass

    optimizer = sgd()
    ensemble = explored(optimizer, controller=Halve(), signal=Constant())
    for _ in range(8):
        optimizer.step()
        ensemble.step()
    assert rates(optimizer) == pytest.approx([0.025, 0.005])
    assert ensemble.state_dict()["hyperparameters"]["lr/0"]["count"] == 2.0


def test_the_training_loss_is_averaged_over_the_cycle_and_can_change_device_type() -> None:
    signal = hdet.TrainingLoss()
    device = torch.device("cpu")
    assert signal.measure(2, device).isnan().all()
    for step in range(3):
        signal.observe(torch.tensor([1.0 * step, 2.0 * step]))
    assert signal.measure(2, device).tolist() == [1.0, 2.0]
    signal.reset(10)
    assert signal.measure(2, device).isnan().all()


def test_small_differences_survive_a_long_cycle() -> None:
    """In float32 a sum of 20 000 losses near 3 no longer tells 1e-6 apart."""
    signal = hdet.TrainingLoss()
    for _ in range(20_000):
        signal.observe(torch.tensor([3.0, 3.000002], dtype=torch.float32))
    low, high = signal.measure(2, torch.device("cpu")).tolist()
    assert high - low == pytest.approx(2e-6, rel=0.1)
