"""Random sequences of calls, against models that are small enough to be read.

A few seconds by default; ``HYPOTHESIS_PROFILE=thorough`` draws longer and other sequences.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)
from torch import nn

import hdet
from hdet import functional as F  # noqa: N812
from tests.resumable import through_a_file

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SETTINGS = settings(
    max_examples=1000 if THOROUGH else 60,
    stateful_step_count=100 if THOROUGH else 40,
    deadline=None,
)
R, T, START, RATE, SPREAD, TEMPERATURE = 3, 4, 6, 0.1, 0.2, 0.05
LOSSES = st.lists(st.integers(0, 20).map(lambda n: n / 16), min_size=R, max_size=R)


class Model:
    """What an ensemble of three replicas under the paper's controller must come to."""

    def __init__(self) -> None:
        self.step, self.base, self.velocity, self.frozen = 0, RATE, 0.0, False
        self.sums, self.count = [0.0] * R, 0

    def multipliers(self) -> list[float]:
        rho = F.spread_multipliers(R, SPREAD)
        cycle = self.step // T
        return (rho[F.permutation(0, cycle, 0, R)] if cycle else rho).tolist()

    def take(self, losses: list[float]) -> None:
        values = [self.base * own for own in self.multipliers()]
        self.step += 1
        self.count += 1
        self.sums = [total + own for total, own in zip(self.sums, losses, strict=True)]
        if self.step % T:
            return
        means = torch.tensor([total / self.count for total in self.sums], dtype=torch.float64)
        self.sums, self.count = [0.0] * R, 0
        if self.step < START or self.frozen:
            return
        delta = F.hypergradient(values, F.softmax_weights(means, TEMPERATURE))
        self.velocity, base = F.meta_update(
            self.velocity, delta, self.base, meta_momentum=0.9, meta_lr=0.5, base_decay=0.0
        )
        if base <= 0.0:
            self.velocity, base = 0.0, self.base * 0.1
        self.base = base


class EnsembleMachine(RuleBasedStateMachine):
    """Steps, converges, saves, loads and new groups in any order."""

    saves = Bundle("saves")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.live = self.build()

    def build(self) -> hdet.Ensemble:
        self.param = nn.Parameter(torch.ones(2))
        return hdet.Ensemble(
            torch.optim.SGD([self.param], lr=RATE),
            hyperparameters=[hdet.LearningRate(0, spread_ratio=SPREAD)],
            controller=hdet.PaperController(start_step=START, temperature=TEMPERATURE),
            cycle_steps=T,
            replicas=hdet.VirtualReplicas(R),
        )

    @rule(losses=LOSSES)
    def step(self, losses: list[float]) -> None:
        for _ in self.live.fan_out(torch.ones(R)):
            pass
        for group in self.live.optimizer.param_groups:
            for param in group["params"]:
                param.grad = torch.full_like(param, 0.01)
        self.live.optimizer.step()
        self.live.step(losses)
        self.model.take(losses)

    @rule()
    def converge(self) -> None:
        self.live.converge()

    @rule()
    def freeze(self) -> None:
        if self.model.step > 5 * T:
            self.live.freeze()
            if not self.model.frozen:  # a second time it does nothing
                self.model.sums, self.model.count = [0.0] * R, 0
            self.model.frozen = True

    @rule(target=saves)
    def save(self) -> Any:
        self.live.converge()
        return through_a_file(self.live.state_dict()), copy.deepcopy(self.model)

    @rule(saved=saves, anew=st.booleans())
    def load(self, saved: Any, anew: bool) -> None:
        state, model = saved
        if anew:
            self.live = self.build()
        self.live.load_state_dict(state)
        self.model = copy.deepcopy(model)

    @rule(saved=consumes(saves))
    def forget(self, saved: Any) -> None:
        assert saved[0]["step"] == saved[1].step

    @rule(saved=saves, key=st.sampled_from(["step", "hyperparameters", "cycle_so_far", "signal"]))
    def load_a_damaged_one(self, saved: Any, key: str) -> None:
        with pytest.raises(hdet.HDETError):
            self.live.load_state_dict({**saved[0], key: "damaged"})

    @precondition(lambda self: len(self.live.optimizer.param_groups) < 4)
    @rule()
    def add_param_group(self) -> None:
        self.live.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "lr": 0.5})

    @rule(losses=st.sampled_from(["text", [1.0], torch.ones(R + 1), {}]))
    def step_with_a_bad_loss(self, losses: Any) -> None:
        with pytest.raises(hdet.HDETError):
            self.live.step(losses)

    @invariant()
    def agree(self) -> None:
        assert self.live.num_steps == self.model.step
        assert self.live._cycle == self.model.step // T
        assert self.live._cycle_end == (self.model.step // T + 1) * T
        assert self.live.base_values["lr/0"] == self.model.base
        assert self.live.controller_states["lr/0"]["velocity"] == self.model.velocity
        for replica, rho in enumerate(self.model.multipliers()):
            assert self.live.replica_values(replica)["lr/0"] == self.model.base * rho
        (entry,) = self.live._progress.state(self.model.step, alike=False)
        assert entry["signal"]["num_steps"] == self.model.count
        assert entry["signal"]["sum"] == (self.model.sums if self.model.count else None)

    @invariant()
    def the_base_value_stands_in_the_optimizer(self) -> None:
        assert self.live.optimizer.param_groups[0]["lr"] == self.model.base
        assert [g["lr"] for g in self.live.optimizer.param_groups[1:]] == [0.5] * (
            len(self.live.optimizer.param_groups) - 1
        )


class AutoLRMachine(RuleBasedStateMachine):
    """The model is the run that never saved or loaded, played from its first step."""

    saves = Bundle("saves")

    def __init__(self) -> None:
        super().__init__()
        self.history: list[int] = []
        self.annealed_at: int | None = None
        self.live = self.build()

    def build(self) -> hdet.AutoLR:
        torch.manual_seed(0)
        self.param = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
        self.optimizer = torch.optim.SGD([self.param], lr=1.0, momentum=0.5)
        return hdet.AutoLR(self.optimizer, seed=3)

    def take(self, live: hdet.AutoLR, seed: int) -> None:
        (group,) = live.optimizer.param_groups
        (param,) = group["params"]
        noise = torch.randn(3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        param.grad = param.detach() + noise
        live.optimizer.step()
        live.step(float(noise[0]))

    @rule(seeds=st.lists(st.integers(0, 50), min_size=1, max_size=20))
    def step(self, seeds: list[int]) -> None:
        for seed in seeds:
            self.take(self.live, seed)
        self.history += seeds

    @rule()
    def converge(self) -> None:
        self.live.converge()

    @precondition(lambda self: self.annealed_at is None and len(self.history) > 20)
    @rule()
    def anneal(self) -> None:
        self.live.anneal(1000)
        self.annealed_at = len(self.history)

    @rule(target=saves)
    def save(self) -> Any:
        parts = [self.param.detach().clone(), self.optimizer.state_dict(), self.live.state_dict()]
        return multiple((through_a_file(parts), list(self.history), self.annealed_at))

    @rule(saved=saves, anew=st.booleans())
    def load(self, saved: Any, anew: bool) -> None:
        # PyTorch's optimisers go on in the tensors that they are given.
        (point, optimizer, scheduler), history, annealed_at = copy.deepcopy(saved)
        if anew:
            self.live = self.build()
        with torch.no_grad():
            self.param.copy_(point)
        self.optimizer.load_state_dict(optimizer)
        self.live.load_state_dict(scheduler)
        self.history, self.annealed_at = list(history), annealed_at

    @rule()
    def add_param_group(self) -> None:
        before = repr(self.live.state_dict())
        self.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        for call in (self.live.step, self.live.converge):
            with pytest.raises(hdet.HDETError, match="parameter groups"):
                call()
        del self.optimizer.param_groups[1]
        assert repr(self.live.state_dict()) == before

    @invariant()
    def counts(self) -> None:
        ensemble = self.live.ensemble
        assert self.live.last_epoch == ensemble.num_steps == len(self.history)
        assert ensemble._cycle_end > ensemble.num_steps
        assert ensemble._values.frozen == (self.annealed_at is not None)

    def teardown(self) -> None:
        live, point = self.live, self.param.detach().clone()
        found = repr(live.state_dict())
        rates = live.get_last_lr()
        plain = self.build()
        for step, seed in enumerate(self.history):
            if step == self.annealed_at:
                plain.anneal(1000)
            self.take(plain, seed)
        if self.annealed_at == len(self.history):
            plain.anneal(1000)
        assert torch.equal(self.param.detach(), point)
        assert plain.ensemble.base_values == live.ensemble.base_values
        assert plain.get_last_lr() == rates
        assert repr(plain.state_dict()) == found


class TestEnsemble(EnsembleMachine.TestCase):
    settings = SETTINGS


class TestAutoLR(AutoLRMachine.TestCase):
    settings = SETTINGS


def test_the_model_is_no_constant() -> None:
    """Negative control."""
    model, bases = Model(), set()
    for step in range(24):
        model.take([1.0 + 0.05 * step, 1.0, 0.5])
        bases.add(model.base)
    assert len(bases) > 3
