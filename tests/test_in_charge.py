"""Whoever else writes rates, parameters or buffers is respected: schedulers, users, checkpoints."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hdet
from tests import training
from tests.pool import Pool


def chain_of(
    optimizer: torch.optim.Optimizer, **settings: Any
) -> tuple[lr_scheduler.SequentialLR, hdet.OneCycleLR]:
    """Six steps of linear warmup, then ours."""
    warmup = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=6)
    ours = hdet.OneCycleLR(
        optimizer,
        0.05,
        total_steps=30,
        spread_ratio=0.3,
        cycle_steps=5,
        cycle_momentum=False,
        **settings,
    )
    return lr_scheduler.SequentialLR(optimizer, [warmup, ours], [6]), ours


def model_and_optimizer(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    return model, getattr(torch.optim, kind)(model.parameters(), lr=2e-3)


def batch(step: int) -> torch.Tensor:
    return torch.randn(9, 3, generator=torch.Generator().manual_seed(step)).double()


def virtual_step(model: nn.Module, ensemble: hdet.Ensemble, step: int) -> list[torch.Tensor]:
    points = []
    for _, part in ensemble.fan_out(batch(step)):
        points.append(training.flat(model))
        (model(part).pow(2).mean() / ensemble.num_replicas).backward()
    ensemble.optimizer.step()
    ensemble.optimizer.zero_grad()
    return points


def chain_on_a_process(rank: int, kind: str) -> list[tuple[float, torch.Tensor]]:
    model, optimizer = model_and_optimizer(kind)
    wrapped = nn.parallel.DistributedDataParallel(model)
    chain, _ = chain_of(optimizer)
    seen = []
    for step in range(14):
        seen.append((optimizer.param_groups[0]["lr"], training.flat(model)))
        wrapped(batch(step)[3 * rank : 3 * rank + 3]).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        chain.step()
    return seen


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_chain_of_schedulers_is_the_same_on_virtual_replicas(pool: Pool, kind: str) -> None:
    ranks = pool.run(chain_on_a_process, 3, kind)
    model, optimizer = model_and_optimizer(kind)
    chain, ours = chain_of(optimizer, replicas=hdet.VirtualReplicas(3))
    for step in range(14):
        rate = optimizer.param_groups[0]["lr"]
        points = virtual_step(model, ours.ensemble, step)
        for rank, point in zip(ranks, points, strict=True):
            assert torch.allclose(point, rank[step][1], rtol=1e-11), step
        if step < 6:
            assert rate == ranks[0][step][0] == pytest.approx(2e-3 * (0.1 + 0.15 * step))
            assert torch.equal(points[0], points[2]), "nobody explores during the warmup"
        elif step not in (6, 11):  # the first step, and the first one after a converge
            assert not torch.equal(points[0], points[2])
        chain.step()


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("stop", [3, 9])
@pytest.mark.parametrize("scheduler_first", [True, False])
def test_a_chain_resumes_in_any_phase(kind: str, stop: int, scheduler_first: bool) -> None:
    def build() -> tuple[Any, ...]:
        model, optimizer = model_and_optimizer(kind)
        return model, optimizer, *chain_of(optimizer, replicas=hdet.VirtualReplicas(3))

    model, optimizer, chain, ours = build()
    for step in range(stop):
        virtual_step(model, ours.ensemble, step)
        chain.step()
    ours.converge()
    saved = [copy.deepcopy(own.state_dict()) for own in (model, optimizer, chain)]
    other = build()
    other[0].load_state_dict(saved[0])
    loads = [(other[2], saved[2]), (other[1], saved[1])]
    for target, state in loads if scheduler_first else loads[::-1]:
        target.load_state_dict(state)
    for step in range(stop, 12):
        assert other[1].param_groups[0]["lr"] == optimizer.param_groups[0]["lr"], step
        for own_model, own_chain, own in ((model, chain, ours), (other[0], other[2], other[3])):
            virtual_step(own_model, own.ensemble, step)
            own_chain.step()
    assert torch.allclose(training.flat(model), training.flat(other[0]), rtol=1e-12)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_rate_set_by_hand_holds_and_stops_the_exploration(kind: str) -> None:
    model, optimizer = model_and_optimizer(kind)
    scheduler = hdet.OneCycleLR(
        optimizer,
        0.05,
        total_steps=30,
        spread_ratio=0.3,
        cycle_steps=10,
        cycle_momentum=False,
        replicas=hdet.VirtualReplicas(3),
    )
    for step in range(3):
        virtual_step(model, scheduler.ensemble, step)
        scheduler.step()
    optimizer.param_groups[0]["lr"] = 0.0
    points = virtual_step(model, scheduler.ensemble, 3)
    assert optimizer.param_groups[0]["lr"] == 0.0
    assert torch.equal(points[0], points[2])
    before = training.flat(model)
    virtual_step(model, scheduler.ensemble, 4)
    assert torch.equal(before, training.flat(model))


@pytest.mark.parametrize("fused", [True, False])
def test_a_grad_scaler_unscales_once(fused: bool) -> None:
    def train(*, scaled: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        scheduler = hdet.OneCycleLR(
            optimizer,
            0.05,
            total_steps=30,
            spread_ratio=0.3,
            cycle_steps=5,
            replicas=hdet.VirtualReplicas(3),
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for step in range(12):
            for _, part in scheduler.ensemble.fan_out(batch(step).float()):
                scaler.scale(model(part).pow(2).mean() / 3).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
        return training.flat(model)

    assert torch.allclose(train(scaled=True), train(scaled=False), rtol=1e-5)


class Later(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.early = nn.Parameter(torch.ones(2))
        self.late = nn.Parameter(torch.ones(2), requires_grad=False)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("how", ["unfrozen", "added"])
def test_a_parameter_that_joins_inside_a_cycle_is_stepped_once(kind: str, how: str) -> None:
    def train(*, replicas: hdet.VirtualReplicas | None) -> list[float]:
        model = Later()
        members = list(model.parameters()) if how == "unfrozen" else [model.early]
        optimizer = getattr(torch.optim, kind)(members, lr=0.1)
        ensemble = hdet.Ensemble(
            optimizer,
            hyperparameters=[hdet.LearningRate(0, spread_ratio=0.3 if replicas else 0.0)],
            cycle_steps=5,
            replicas=replicas,
        )
        seen = []
        for step in range(5):
            if step == 2:
                model.late.requires_grad_()
                if how == "added":
                    optimizer.add_param_group({"params": [model.late], "lr": 0.1})
            loss = (model.early + model.late).pow(2).sum()
            for _ in ensemble.fan_out(torch.ones(3)):
                (loss / ensemble.num_replicas).backward(retain_graph=True)
                break
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                seen = model.late.tolist()
            ensemble.step()
        return seen

    expected = train(replicas=None)
    assert train(replicas=hdet.VirtualReplicas(3)) == pytest.approx(expected, rel=1e-2)


class Nested(torch.optim.AdamW):
    """A subclass whose step calls its parent's, as many libraries have."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_a_subclass_that_calls_its_parents_step() -> None:
    ends = []
    for kind in (torch.optim.AdamW, Nested):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        optimizer = kind(model.parameters(), lr=1e-2)
        scheduler = hdet.OneCycleLR(
            optimizer,
            0.05,
            total_steps=30,
            spread_ratio=0.3,
            cycle_steps=5,
            replicas=hdet.VirtualReplicas(3),
        )
        for step in range(8):
            for _, part in scheduler.ensemble.fan_out(batch(step)):
                (model(part).pow(2).mean() / 3).backward()
            optimizer.step(None)
            optimizer.zero_grad()
            scheduler.step()
        ends.append(training.flat(model))
    assert torch.equal(ends[0], ends[1])


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


def steering_apart(rank: int) -> str:
    model, optimizer = model_and_optimizer("Adam")
    assert rank >= 0
    assert model is not None
    try:
        hdet.OneCycleLR(
            optimizer,
            0.1,
            total_steps=30,
            cycle_steps=5,
            spread_ratio=0.1,
            auto_lr=True,
            replicas=hdet.VirtualReplicas(2),
        )
    except hdet.HDETError as error:
        return str(error)
    return "no error"


@pytest.mark.distributed
def test_virtual_replicas_do_not_steer_a_run_of_processes(pool: Pool) -> None:
    for message in pool.run(steering_apart, 2):
        assert "process group of 2" in message


def fully_sharded(rank: int) -> str:
    import warnings

    from torch.distributed.fsdp import FullyShardedDataParallel

    assert rank >= 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            hdet.Ensemble(optimizer, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)])
        except hdet.HDETError as error:
            return str(error)
    return "no error"


@pytest.mark.distributed
def test_flat_parameters_are_refused(pool: Pool) -> None:
    for message in pool.run(fully_sharded, 2):
        assert "FSDP parameters" in message
        assert "HSDP" in message


def loss_on_one_rank(rank: int) -> list[float]:
    param = nn.Parameter(torch.full((2,), float(rank)))
    optimizer = torch.optim.SGD([param], lr=0.1)
    ensemble = hdet.Ensemble(
        optimizer, hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)], cycle_steps=2
    )
    for _ in range(2):
        optimizer.step()
        ensemble.step(1.0 if rank == 0 else None)
    return param.tolist()


@pytest.mark.distributed
def test_a_loss_that_one_rank_did_not_report_disqualifies_nobody(pool: Pool) -> None:
    assert pool.run(loss_on_one_rank, 2) == [[0.5, 0.5]] * 2


class Plain(hdet.AbstractController):
    """A user's own, with a setting and without a repr."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @property
    def start_step(self) -> int:
        return 0

    def init(self) -> dict[str, float]:
        return {}

    def update(
        self, state: dict[str, float], base: float, values_R: Any, losses_R: Any
    ) -> tuple[dict[str, float], float]:
        del values_R, losses_R
        return state, base * self.factor


def own_controller(rank: int, differs: bool) -> str:
    _, optimizer = model_and_optimizer("Adam")
    ensemble = hdet.Ensemble(
        optimizer,
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)],
        controller=Plain(0.5 + (rank if differs else 0)),
        cycle_steps=1,
    )
    try:
        ensemble.step(1.0)
    except hdet.HDETError as error:
        return str(error)
    return f"{ensemble.base_values['lr/0']:.6f}"


@pytest.mark.distributed
def test_a_controller_of_the_users_own_on_processes(pool: Pool) -> None:
    assert pool.run(own_controller, 2, False) == ["0.001000"] * 2
    for message in pool.run(own_controller, 2, True):
        assert "Plain(factor=0.5)" in message
        assert "Plain(factor=1.5)" in message


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_roll_back_inside_a_cycle_starts_from_what_was_loaded(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-2)
    scheduler = hdet.OneCycleLR(
        optimizer,
        0.05,
        total_steps=30,
        spread_ratio=0.3,
        cycle_steps=5,
        replicas=hdet.VirtualReplicas(3),
        model=model,
    )
    for step in range(5):
        virtual_step(model, scheduler.ensemble, step)
        scheduler.step()
    saved = [copy.deepcopy(own.state_dict()) for own in (model, optimizer, scheduler)]
    for step in range(3):
        virtual_step(model, scheduler.ensemble, step)
        scheduler.step()
    for target, state in zip((model, optimizer, scheduler), saved, strict=True):
        target.load_state_dict(state)
    expected = training.flat(model)
    for _ in scheduler.ensemble.fan_out(batch(0)):
        assert torch.equal(training.flat(model), expected)


def test_a_checkpoint_without_a_controller_goes_on_with_one() -> None:
    def build(**settings: Any) -> hdet.OneCycleLR:
        _, optimizer = model_and_optimizer("Adam")
        return hdet.OneCycleLR(
            optimizer,
            0.05,
            total_steps=30,
            spread_ratio=0.3,
            cycle_steps=5,
            replicas=hdet.VirtualReplicas(3),
            **settings,
        )

    plain, steered = build(), build(auto_lr=True, warmup_steps=10)
    for _ in range(5):
        plain.optimizer.step()
        plain.step()
    steered.load_state_dict(plain.state_dict())
    for _ in range(10):
        steered.optimizer.step()
        steered.step([1.0, 1.0, 1.0])
    plain.load_state_dict(steered.state_dict())
    assert plain.ensemble.num_steps == 15


@pytest.mark.parametrize(
    "break_it",
    [
        lambda s: s["ensemble"].pop("plan"),
        lambda s: s["ensemble"].update(step=-1),
        lambda s: s["ensemble"]["hyperparameters"]["lr/0"].update(base="fast"),
        lambda s: s["ensemble"].update(version=0),
    ],
)
def test_a_broken_checkpoint_changes_nothing(break_it: Any) -> None:
    _, optimizer = model_and_optimizer("Adam")
    scheduler = hdet.OneCycleLR(optimizer, 0.05, total_steps=30)
    before = scheduler.state_dict()
    broken = copy.deepcopy(before)
    broken["last_epoch"] = 17
    break_it(broken)
    with pytest.raises(hdet.HDETError):
        scheduler.load_state_dict(broken)
    assert scheduler.state_dict() == before


class TestBuffers:
    def build(self, model: nn.Module) -> hdet.Ensemble:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return hdet.Ensemble(
            optimizer,
            hyperparameters=[hdet.LearningRate(0, spread_ratio=0.3)],
            cycle_steps=3,
            replicas=hdet.VirtualReplicas(2),
            model=model,
        )

    def test_written_to_between_steps(self) -> None:
        model = nn.BatchNorm1d(2)
        ensemble = self.build(model)
        for value in (0.25, 0.5):
            for _ in ensemble.fan_out(torch.ones(4, 2)):
                pass
            model.running_mean.fill_(value)
            for _ in ensemble.fan_out(torch.ones(4, 2)):
                assert model.running_mean.tolist() == [value] * 2
            assert model.running_mean.tolist() == [value] * 2

    def test_registered_or_replaced_between_steps(self) -> None:
        model = nn.Linear(2, 1)
        ensemble = self.build(model)
        for value in (torch.ones(1), torch.zeros(3)):
            model.register_buffer("late", value)
            for _ in ensemble.fan_out(torch.ones(4, 2)):
                assert torch.equal(model.late, value)
        ensemble.step()
        ensemble.converge()

    def test_expanded_ones_are_constants(self) -> None:
        model = nn.Linear(2, 1)
        model.register_buffer("ones", torch.ones(1).expand(3))
        ensemble = self.build(model)
        for _ in range(3):
            for _, part in ensemble.fan_out(torch.ones(4, 2)):
                model(part).sum().backward()
            ensemble.optimizer.step()
            ensemble.step()
        assert model.ones.tolist() == [1.0] * 3


def test_weights_clamped_between_steps_stay_clamped() -> None:
    model, optimizer = model_and_optimizer("AdamW")
    scheduler = hdet.OneCycleLR(
        optimizer,
        0.5,
        total_steps=30,
        spread_ratio=0.3,
        cycle_steps=5,
        replicas=hdet.VirtualReplicas(3),
    )
    for step in range(7):
        points = virtual_step(model, scheduler.ensemble, step)
        assert step == 0 or max(float(p.abs().max()) for p in points) <= 0.05 + 1e-12
        with torch.no_grad():
            for param in model.parameters():
                param.clamp_(-0.05, 0.05)
        scheduler.step()


def test_weight_decay_switched_on_later_is_exact_from_the_next_cycle() -> None:
    from hdet.replicas.storage import CopiesStorage, LineStorage

    model, optimizer = model_and_optimizer("Adam")
    scheduler = hdet.OneCycleLR(
        optimizer,
        0.5,
        total_steps=30,
        spread_ratio=0.3,
        cycle_steps=3,
        replicas=hdet.VirtualReplicas(3),
    )
    for step in range(4):
        virtual_step(model, scheduler.ensemble, step)
        scheduler.step()
        optimizer.param_groups[0]["weight_decay"] = 0.1
        storage = scheduler.ensemble.replicas._storage
        assert isinstance(storage, LineStorage if step < 3 else CopiesStorage)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_a_model_that_changes_type_between_cycles(kind: str) -> None:
    model, optimizer = model_and_optimizer(kind)
    model.float()
    scheduler = hdet.OneCycleLR(
        optimizer,
        0.5,
        total_steps=30,
        spread_ratio=0.3,
        cycle_steps=1,
        replicas=hdet.VirtualReplicas(3),
    )
    for _ in range(3):
        model.double()
        optimizer.state.clear()
        for _, part in scheduler.ensemble.fan_out(batch(0)):
            (model(part).pow(2).mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        model.float()


def test_misplaced_calls_are_named() -> None:
    _, optimizer = model_and_optimizer("Adam")
    scheduler = hdet.OneCycleLR(
        optimizer,
        0.5,
        total_steps=30,
        spread_ratio=0.3,
        cycle_steps=3,
        replicas=hdet.VirtualReplicas(3),
        auto_lr=True,
    )
    ensemble = scheduler.ensemble
    loop = ensemble.fan_out(batch(0))
    next(loop)
    with pytest.raises(hdet.errors.UsageError, match=r"converge\(\) was called inside fan_out"):
        ensemble.converge()
    with pytest.raises(hdet.errors.UsageError, match=r"fan_out\(\) was called inside fan_out"):
        next(ensemble.fan_out(batch(0)))
    with pytest.raises(hdet.errors.UsageError, match=r"step\(\) was called inside fan_out"):
        scheduler.step([1.0, 1.0, 1.0])
    loop.close()
    ensemble.observe([1.0, 1.0, 1.0])
    with pytest.raises(hdet.errors.UsageError, match="handed over twice"):
        scheduler.step([1.0, 1.0, 1.0])


def test_virtual_replicas_can_serve_again_when_their_scheduler_is_gone() -> None:
    import gc

    model, optimizer = model_and_optimizer("AdamW")
    replicas = hdet.VirtualReplicas(3)
    rates = [hdet.LearningRate(0, spread_ratio=0.3)]
    ensemble = hdet.Ensemble(optimizer, hyperparameters=rates, replicas=replicas)
    virtual_step(model, ensemble, 0)
    del ensemble
    gc.collect()
    again = hdet.Ensemble(optimizer, hyperparameters=rates, replicas=replicas, cycle_steps=5)
    virtual_step(model, again, 0)
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_a_cycle_longer_than_the_run_warns() -> None:
    _, optimizer = model_and_optimizer("Adam")
    with pytest.warns(hdet.HDETWarning, match="cycle_steps=1000 is longer than the run of 30"):
        hdet.OneCycleLR(
            optimizer, 0.5, total_steps=30, spread_ratio=0.3, replicas=hdet.VirtualReplicas(3)
        )


def test_switched_off_virtual_replicas_hold_nothing() -> None:
    _, optimizer = model_and_optimizer("AdamW")
    scheduler = hdet.OneCycleLR(optimizer, 0.5, total_steps=30, replicas=hdet.VirtualReplicas(3))
    assert scheduler.ensemble.replicas._storage is None


def test_a_refused_argument_leaves_the_optimizer_as_it_was() -> None:
    _, optimizer = model_and_optimizer("Adam")
    before = dict(optimizer.param_groups[0])
    for bad in ({"replicas": "x"}, {"seed": "x"}, {"model": "x"}, {"spread_ratio": 2.0}):
        with pytest.raises(hdet.HDETError):
            hdet.OneCycleLR(optimizer, 0.5, total_steps=30, **bad)
        assert dict(optimizer.param_groups[0]) == before
