"""`VirtualReplicas` and `fan_out`: swapping in place, splitting, buffers, memory, misuse."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hdet
from hdet.replicas.split import split
from hdet.replicas.storage import CopiesStorage, LineStorage
from tests import training


def ensemble_of(
    optimizer: torch.optim.Optimizer, n: int = 4, *, exact: bool = True, **overrides: Any
) -> hdet.Ensemble:
    settings: dict[str, Any] = {
        "hyperparameters": [hdet.LearningRate(0, spread_ratio=0.5)],
        "cycle_steps": 3,
        "replicas": hdet.VirtualReplicas(n, exact=exact),
    }
    return hdet.Ensemble(optimizer, **{**settings, **overrides})


def one_step(ensemble: hdet.Ensemble, model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Train one step; return the parameters that each replica's forward pass saw."""
    seen, losses = [], []
    for _, part in ensemble.fan_out(x):
        seen.append(training.flat(model))
        loss = model(part).pow(2).mean()
        losses.append(loss.detach())
        (loss / ensemble.num_replicas).backward()
    ensemble.optimizer.step()
    ensemble.optimizer.zero_grad()
    ensemble.step(torch.stack(losses))
    return seen


class TestSwapping:
    @pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
    def test_storage_and_module_stay_the_users_own(self, optimizer: str) -> None:
        model, opt = training.build(optimizer, torch.float32)
        pointers = [p.data_ptr() for p in model.parameters()]
        ensemble = ensemble_of(opt)
        for _ in range(4):
            one_step(ensemble, model, torch.randn(8, 5))
        assert pointers == [p.data_ptr() for p in model.parameters()]
        assert [id(p) for g in opt.param_groups for p in g["params"]] == [
            id(p)
            for p in [
                *(p for p in model.parameters() if p.dim() > 1),
                *(p for p in model.parameters() if p.dim() <= 1),
            ]
        ]

    def test_replicas_lie_on_a_line_around_the_base_point(self) -> None:
        model, opt = training.build("sgd", torch.float64)
        ensemble = ensemble_of(
            opt,
            3,
            hyperparameters=[
                hdet.LearningRate(0, spread_ratio=0.5),
                hdet.LearningRate(1, spread_ratio=0.5),
            ],
        )
        start = training.flat(model)
        one_step(ensemble, model, torch.randn(6, 5).double())
        base = training.flat(model)
        seen = one_step(ensemble, model, torch.randn(6, 5).double())
        for own, rho in zip(seen, [0.5, 1.0, 1.5], strict=True):
            assert torch.allclose(own, start + rho * (base - start), rtol=1e-14, atol=1e-15)

    def test_the_base_point_is_back_to_the_last_bit_after_the_loop(self) -> None:
        model, opt = training.build("adam", torch.float32)
        ensemble = ensemble_of(opt)
        one_step(ensemble, model, torch.randn(8, 5))
        before = training.flat(model)
        for _, part in ensemble.fan_out(torch.randn(8, 5)):
            model(part)
        assert torch.equal(before, training.flat(model))

    @pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
    def test_an_exception_in_the_loop_brings_the_base_point_back(self, optimizer: str) -> None:
        model, opt = training.build(optimizer, torch.float32)
        ensemble = ensemble_of(opt)
        one_step(ensemble, model, torch.randn(8, 5))
        before = training.flat(model)

        def fail() -> None:
            for replica, _ in ensemble.fan_out(torch.randn(8, 5)):
                if replica == 2:
                    raise KeyError("the user's own error")

        with pytest.raises(KeyError):
            fail()
        gc.collect()
        assert torch.equal(before, training.flat(model))
        one_step(ensemble, model, torch.randn(8, 5))

    def test_a_single_replica_is_plain_training(self) -> None:
        model, opt = training.build("adamw", torch.float32)
        other, plain = training.build("adamw", torch.float32)
        with pytest.warns(hdet.HDETWarning, match="single replica"):
            ensemble = ensemble_of(opt, 1)
        for _ in range(5):
            x = torch.randn(8, 5)
            one_step(ensemble, model, x)
            other(x).pow(2).mean().backward()
            plain.step()
            plain.zero_grad()
        assert torch.equal(training.flat(model), training.flat(other))

    def test_no_spread_is_plain_accumulation(self) -> None:
        model, opt = training.build("adam", torch.float32)
        other, plain = training.build("adam", torch.float32)
        ensemble = ensemble_of(opt, 4, hyperparameters=[hdet.LearningRate(0)])
        for _ in range(5):
            x = torch.randn(8, 5)
            one_step(ensemble, model, x)
            for part in x.chunk(4):
                (other(part).pow(2).mean() / 4).backward()
            plain.step()
            plain.zero_grad()
        assert torch.equal(training.flat(model), training.flat(other))

    def test_frozen_parameters_are_left_alone(self) -> None:
        model, opt = training.build("adamw", torch.float32)
        model.first.weight.requires_grad_(requires_grad=False)
        before = model.first.weight.clone()
        version = model.first.weight._version
        ensemble = ensemble_of(opt)
        for _ in range(4):
            one_step(ensemble, model, torch.randn(8, 5))
        assert torch.equal(before, model.first.weight)
        assert version == model.first.weight._version


class TestStorage:
    @pytest.mark.parametrize(
        ("optimizer", "exact", "storage"),
        [
            ("sgd", True, LineStorage),
            ("adam", True, LineStorage),
            ("adamw", True, CopiesStorage),
            ("adamw", False, LineStorage),
            ("sgd-coupled-decay", True, CopiesStorage),
            ("adafactor", True, CopiesStorage),
        ],
    )
    def test_two_copies_where_that_is_exact(
        self, optimizer: str, exact: bool, storage: type
    ) -> None:
        _, opt = training.build(optimizer, torch.float32)
        ensemble = ensemble_of(opt, exact=exact)
        assert type(ensemble.replicas._storage) is storage

    def test_a_subclass_of_a_known_optimizer_is_not_known(self) -> None:
        class Mine(torch.optim.SGD):
            pass

        ensemble = ensemble_of(Mine([nn.Parameter(torch.ones(1))], lr=0.1))
        assert type(ensemble.replicas._storage) is CopiesStorage

    def test_the_line_holds_two_copies_however_many_replicas(self) -> None:
        param = nn.Parameter(torch.zeros(1000))
        ensemble = ensemble_of(torch.optim.SGD([param], lr=0.1), 8)
        for _ in ensemble.fan_out(torch.ones(8, 1)):
            pass
        storage = ensemble.replicas._storage
        held = sum(t.numel() for t in [*storage._sync, *storage._base])
        assert held == 2 * param.numel()

    @pytest.mark.parametrize("cycle_steps", [10, 40])
    def test_the_bend_of_weight_decay_is_second_order(self, cycle_steps: int) -> None:
        """The documented error of `exact=False`: O((rate * decay * T)^2)."""
        settings: dict[str, Any] = {"cycle_steps": cycle_steps, "auto_lr": False}
        exact = training.train_virtual("adamw", 3, torch.float64, 40, **settings)
        line = training.train_virtual("adamw", 3, torch.float64, 40, exact=False, **settings)
        error = (exact["converged"] - line["converged"]).norm() / exact["converged"].norm()
        assert 0 < float(error) < 10 * (0.02 * 0.1 * cycle_steps) ** 2

    def test_parameters_loaded_between_cycles_are_taken_up(self) -> None:
        model, opt = training.build("adam", torch.float32)
        ensemble = ensemble_of(opt)
        for _ in range(3):
            one_step(ensemble, model, torch.randn(8, 5))
        other = copy.deepcopy(model.state_dict())
        other = {name: torch.zeros_like(value) for name, value in other.items()}
        model.load_state_dict(other)
        seen = one_step(ensemble, model, torch.randn(8, 5))
        assert all(float(own.abs().sum()) == 0.0 for own in seen)

    def test_an_optimizer_checkpoint_inside_a_cycle_starts_the_replicas_together(self) -> None:
        model, opt = training.build("adamw", torch.float32)
        ensemble = ensemble_of(opt)
        one_step(ensemble, model, torch.randn(8, 5))
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        seen = one_step(ensemble, model, torch.randn(8, 5))
        assert all(torch.equal(own, seen[0]) for own in seen)
        seen = one_step(ensemble, model, torch.randn(8, 5))
        assert not torch.equal(seen[0], seen[-1])

    def test_the_users_hooks_run_once_a_step(self) -> None:
        model, opt = training.build("adamw", torch.float32)
        calls: list[int] = []
        opt.register_step_post_hook(lambda *_: calls.append(1))
        ensemble = ensemble_of(opt)
        for _ in range(4):
            one_step(ensemble, model, torch.randn(8, 5))
        assert len(calls) == 4

    def test_an_ensemble_that_is_gone_leaves_the_optimizer_alone(self) -> None:
        model, opt = training.build("adamw", torch.float32)
        ensemble = ensemble_of(opt)
        one_step(ensemble, model, torch.randn(8, 5))
        reference = weakref.ref(ensemble.replicas)
        del ensemble
        gc.collect()
        assert reference() is None
        calls: list[int] = []
        step = torch.optim.AdamW.step.__wrapped__
        torch.optim.AdamW.step.__wrapped__ = lambda *_: calls.append(1)
        opt.step()
        torch.optim.AdamW.step.__wrapped__ = step
        assert calls == [], "a storage that is gone still steps its replicas"


class TestFaults:
    @pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
    def test_a_replica_with_a_nan_loss_is_left_out_of_the_mean(self, optimizer: str) -> None:
        model, opt = training.build(optimizer, torch.float64)
        ensemble = ensemble_of(opt, 3, cycle_steps=10)
        x = torch.randn(6, 5).double()
        one_step(ensemble, model, x)
        one_step(ensemble, model, x)
        points = []
        for replica, _ in ensemble.fan_out(x):
            points.append(training.flat(model))
            assert replica < 3
        ensemble.observe([float("nan"), 1.0, 1.0])
        ensemble.converge()
        expected = (points[1] + points[2]) / 2
        assert torch.allclose(training.flat(model), expected, rtol=1e-12)
        assert not torch.allclose(training.flat(model), sum(points) / 3, rtol=1e-6)

    def test_a_replica_with_bad_parameters_is_left_out(self) -> None:
        model, opt = training.build("adamw", torch.float64)
        ensemble = ensemble_of(opt, 3, cycle_steps=10)
        one_step(ensemble, model, torch.randn(6, 5).double())
        storage = ensemble.replicas._storage
        storage._copies[1][0].fill_(float("nan"))
        storage._states[1][storage._params[0]]["exp_avg"].fill_(float("nan"))
        ensemble.converge()
        assert bool(torch.isfinite(training.flat(model)).all())
        assert all(
            bool(torch.isfinite(value).all())
            for own in opt.state.values()
            for value in own.values()
        )

    def test_all_replicas_bad_says_so(self) -> None:
        model, opt = training.build("sgd", torch.float32)
        ensemble = ensemble_of(opt, 3, cycle_steps=1)
        with torch.no_grad():
            model.scale.fill_(float("inf"))
        with pytest.raises(hdet.errors.NonFiniteError, match="all 3 replicas"):
            ensemble.step([1.0, 1.0, 1.0])


class TestBuffers:
    def test_each_replica_has_its_own_and_the_mean_shows_outside(self) -> None:
        model, opt = training.build("sgd", torch.float32, batch_norm=True)
        ensemble = ensemble_of(opt, 2, model=model, cycle_steps=10)
        x = torch.cat([torch.zeros(4, 5), torch.ones(4, 5)])
        seen = {}
        for replica, part in ensemble.fan_out(x):
            model(part)
            seen[replica] = model.norm.running_mean.clone()
        assert not torch.allclose(seen[0], seen[1])
        shown = model.norm.running_mean
        assert torch.allclose(shown, (seen[0] + seen[1]) / 2)
        assert int(model.norm.num_batches_tracked) == 1
        for replica, part in ensemble.fan_out(x):
            assert torch.equal(model.norm.running_mean, seen[replica])
            model(part)

    def test_without_the_model_they_are_updated_one_after_the_other(self) -> None:
        model, opt = training.build("sgd", torch.float32, batch_norm=True)
        ensemble = ensemble_of(opt, 2)
        for _, part in ensemble.fan_out(torch.randn(8, 5)):
            model(part)
        assert int(model.norm.num_batches_tracked) == 2

    @pytest.mark.parametrize("shape", ["kept", "grown"])
    def test_a_buffer_bound_anew_in_the_forward_pass_is_that_replicas_own(self, shape: str) -> None:
        model = Averages()
        ensemble = ensemble_of(torch.optim.SGD(model.parameters(), lr=0.1), 2, model=model)
        x = torch.tensor([[0.0], [0.0], [4.0], [4.0]])
        for _ in range(3):
            for _, part in ensemble.fan_out(x):
                model(part, grow=shape == "grown").sum().backward()
            assert torch.equal(model.bound, model.written)
            assert float(model.bound) == float(model.written) > 0
        for replica, _ in ensemble.fan_out(x):
            assert float(model.bound) == float(model.written) == [0.0, 3.5][replica]
        assert len(model.table) == (4 if shape == "grown" else 1)
        ensemble.step([1.0, 1.0])
        ensemble.converge()
        assert float(model.bound) == 1.75


class Averages(nn.Module):
    """Two running means, one written to in place and one bound anew, and a table that may grow."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        for name in ("written", "bound"):
            self.register_buffer(name, torch.zeros(()))
        self.register_buffer("table", torch.zeros(1))

    def forward(self, x: torch.Tensor, *, grow: bool = False) -> torch.Tensor:
        self.written.copy_(0.5 * self.written + 0.5 * x.mean())
        self.bound = 0.5 * self.bound + 0.5 * x.mean()
        if grow and len(self.table) == 1:
            self.table = torch.zeros(4)
        return x * self.weight


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class TestSplit:
    @given(st.integers(1, 6), st.integers(1, 4))
    def test_parts_put_together_are_the_batch(self, n: int, length: int) -> None:
        x = torch.arange(n * length * 2).reshape(n * length, 2)
        parts = split({"x": x, "deep": [x + 1, (x + 2,)], "flag": "keep"}, n)
        assert len(parts) == n
        assert torch.equal(torch.cat([part["x"] for part in parts]), x)
        assert torch.equal(torch.cat([part["deep"][1][0] for part in parts]), x + 2)
        assert {part["flag"] for part in parts} == {"keep"}

    def test_containers_keep_their_type(self) -> None:
        x = torch.arange(4)
        pair = split(Pair(x, x + 1), 2)[1]
        assert isinstance(pair, Pair)
        assert pair.y.tolist() == [3, 4]
        assert isinstance(split(OrderedDict(x=x), 2)[0], OrderedDict)
        assert isinstance(split([x, x], 2)[0], list)

    def test_zero_dimensional_tensors_go_to_all(self) -> None:
        assert [float(part[1]) for part in split((torch.ones(2), torch.tensor(5.0)), 2)] == [5, 5]

    def test_parts_are_views(self) -> None:
        x = torch.zeros(4)
        split(x, 2)[1].fill_(1.0)
        assert x.tolist() == [0, 0, 1, 1]


class TestMisuse:
    def test_a_step_inside_the_loop(self) -> None:
        model, opt = training.build("sgd", torch.float32)
        ensemble = ensemble_of(opt)
        loop = ensemble.fan_out(torch.randn(8, 5))
        next(loop)
        with pytest.raises(hdet.errors.UsageError, match=r"inside fan_out.* replica 0 of 4"):
            opt.step()
        loop.close()
        assert model is not None

    def test_a_closure_where_replicas_step_one_by_one(self) -> None:
        _, opt = training.build("adamw", torch.float32)
        ensemble = ensemble_of(opt)
        with pytest.raises(hdet.errors.UsageError, match="closure"):
            opt.step(lambda: 1.0)
        with pytest.raises(hdet.errors.UsageError, match="closure"):
            opt.step(closure=lambda: 1.0)
        assert ensemble.num_replicas == 4

    def test_one_object_for_two_schedulers(self) -> None:
        _, opt = training.build("sgd", torch.float32)
        ensemble = ensemble_of(opt)
        with pytest.raises(hdet.errors.UsageError, match="another scheduler"):
            ensemble_of(opt, replicas=ensemble.replicas)
