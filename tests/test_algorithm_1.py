"""`hdet.OneCycleLR` with a spread: Algorithm 1 step by step, its end, and its state."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import hdet
from tests import reference
from tests.two_groups import exploring, optimizer_of, planted_losses

TorchOneCycle = lr_scheduler.OneCycleLR


class TestAlgorithm1:
    @pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
    @pytest.mark.parametrize(
        ("total", "cycle", "warmup"),
        [
            (60, 10, None),
            (60, 10, 0),
            (60, 10, 20),
            (60, 10, 25),
            (57, 10, 20),
            (57, 8, 19),
            (60, 1, 30),
            (60, 7, 59),
            (60, 100, 10),
        ],
    )
    def test_every_rate_equals_the_reference(
        self, n: int, total: int, cycle: int, warmup: int | None
    ) -> None:
        self.check(n, total, cycle, warmup)

    def test_the_printed_decay_equals_the_reference(self) -> None:
        self.check(4, 60, 10, 20, literal=True)

    @pytest.mark.parametrize("n", [2, 4])
    @pytest.mark.parametrize("warmup", [0, 20, 25])
    def test_pytorchs_default_factors_equal_the_reference_with_its_rescue(
        self, n: int, warmup: int
    ) -> None:
        """A floor 250 000 times down within four cycles: here Eq. 7 as printed goes below zero."""
        self.check(n, 60, 10, warmup, f_div=25.0, f_final=1e4, rescue=True)

    def check(
        self,
        n: int,
        total: int,
        cycle: int,
        warmup: int | None,
        *,
        literal: bool = False,
        f_div: float = 4.0,
        f_final: float = 5.0,
        rescue: bool = False,
    ) -> None:
        expected = reference.algorithm_1(
            num_steps=total,
            total_steps=total,
            max_lrs=[0.3, 0.1],
            n=n,
            alpha=0.2,
            cycle_steps=cycle,
            warmup_steps=warmup,
            losses=planted_losses,
            permutation=lambda c, g: hdet.functional.permutation(3, c, g, n).tolist(),
            sigma=0.02,
            literal=literal,
            f_div=f_div,
            f_final=f_final,
            rescue=rescue,
        )
        assert all(rate > 0 for rates in expected for own in rates for rate in own)
        control = {} if warmup is None else {"auto_lr": True, "warmup_steps": warmup}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hdet.HDETWarning)  # one replica, or a long cycle
            optimizer, scheduler = exploring(
                n,
                total_steps=total,
                cycle_steps=cycle,
                temperature=0.02,
                literal_decay=literal,
                div_factor=f_div,
                final_div_factor=f_final,
                **control,
            )
        moved = 0.0
        for step in range(total + 1):
            rates = [
                [scheduler.ensemble.replica_values(r)[f"lr/{g}"] for r in range(n)]
                for g in range(2)
            ]
            for own, other in zip(rates, expected[step], strict=True):
                assert own == pytest.approx(other, rel=1e-9, abs=0), step
            moved = max(moved, abs(rates[0][0] - rates[0][-1]))
            if step < total:
                losses = planted_losses(step, rates)
                optimizer.step()
                scheduler.step(losses if n > 1 else losses[0])
        assert n == 1 or moved > 1e-3, "the replicas never had different rates"

    def test_the_corrected_decay_runs_the_last_cycle_at_the_floor(self) -> None:
        optimizer, scheduler = exploring(4, auto_lr=True, warmup_steps=20)
        for _ in range(59):
            optimizer.step()
            scheduler.step([1.0] * 4)
        base = scheduler.ensemble.base_values
        assert base["lr/0"] == pytest.approx(0.3 / 25e4, rel=1e-9)
        assert base["lr/1"] == pytest.approx(0.1 / 25e4, rel=1e-9)

    def test_momentum_keeps_cycling_under_the_controller(self) -> None:
        plain = optimizer_of()
        theirs = TorchOneCycle(plain, [0.3, 0.1], total_steps=60)
        optimizer, scheduler = exploring(4, auto_lr=True, warmup_steps=20)
        for _ in range(60):
            plain.step()
            theirs.step()
            optimizer.step()
            scheduler.step([1.0] * 4)
            momenta = [g["momentum"] for g in optimizer.param_groups]
            assert momenta == [g["momentum"] for g in plain.param_groups]

    def test_auto_lr_that_never_starts_is_the_plain_schedule_and_warns(self) -> None:
        with pytest.warns(hdet.HDETWarning, match="never starts"):
            optimizer, scheduler = exploring(2, auto_lr=True, warmup_steps=60)
        for step in range(59):
            optimizer.step()
            scheduler.step([1.0, 1.0])
            assert scheduler.get_last_lr()[0] == pytest.approx(
                reference.one_cycle(step + 1, 0.3, 60)
            )

    def test_a_controller_without_a_spread_only_decays(self) -> None:
        optimizer = optimizer_of()
        with pytest.warns(hdet.HDETWarning, match="nothing to compare, because spread_ratio is 0"):
            scheduler = hdet.OneCycleLR(
                optimizer, 0.3, total_steps=60, cycle_steps=10, auto_lr=True, warmup_steps=30
            )
        held = []
        for _ in range(45):
            optimizer.step()
            scheduler.step(0.5)
            held.append(scheduler.get_last_lr()[0])
        assert held[28] == pytest.approx(reference.one_cycle(29, 0.3, 60))
        assert held[29] == held[35] < held[28]  # at step 30 the controller decays what was in use


class TestConvergeAtTheEnd:
    def test_forgetting_it_warns_once_when_the_state_is_saved(self) -> None:
        optimizer, scheduler = exploring(2, total_steps=25)
        for _ in range(25):
            optimizer.step()
            scheduler.step()
        with pytest.warns(hdet.HDETWarning, match="5 steps after the last converge"):
            scheduler.state_dict()
        scheduler.state_dict()

    def test_converging_first_does_not_warn(self) -> None:
        optimizer, scheduler = exploring(2, total_steps=25)
        for _ in range(25):
            optimizer.step()
            scheduler.step()
        scheduler.converge()
        scheduler.state_dict()


class TestState:
    def run(self, scheduler: hdet.OneCycleLR, steps: range) -> list[dict[str, float]]:
        seen = []
        for step in steps:
            values = [scheduler.ensemble.replica_values(r) for r in range(4)]
            rates = [[own[f"lr/{g}"] for own in values] for g in range(2)]
            scheduler.optimizer.step()
            scheduler.step(planted_losses(step, rates))
            seen += [scheduler.ensemble.replica_values(r) for r in range(4)]
        return seen

    def test_resumed_at_a_converge_equals_uninterrupted(self) -> None:
        settings: dict[str, Any] = {"auto_lr": True, "warmup_steps": 20, "temperature": 0.02}
        _, whole = exploring(4, **settings)
        self.run(whole, range(40))
        buffer = io.BytesIO()
        torch.save(whole.state_dict(), buffer)
        buffer.seek(0)
        _, resumed = exploring(4, **settings)
        resumed.load_state_dict(torch.load(buffer, weights_only=True))
        rest = self.run(whole, range(40, 60))
        assert self.run(resumed, range(40, 60)) == rest
        _, fresh = exploring(4, **settings)  # negative control
        assert self.run(fresh, range(40, 60)) != rest

    @pytest.mark.parametrize("clone", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
    def test_a_copy_goes_on_alone(self, clone: Any) -> None:
        _, scheduler = exploring(4, auto_lr=True, warmup_steps=20)
        self.run(scheduler, range(30))
        other = clone(scheduler)
        assert other.optimizer is not scheduler.optimizer
        assert self.run(other, range(30, 60)) == self.run(scheduler, range(30, 60))

    def test_state_is_plain_and_holds_no_replicas_rate(self) -> None:
        _, scheduler = exploring(4)
        self.run(scheduler, range(20))
        state = scheduler.state_dict()
        assert state["_last_lr"] == list(scheduler.ensemble.base_values.values())

        def plain(value: object) -> bool:
            if isinstance(value, dict):
                return all(plain(own) for own in value.values())
            if isinstance(value, list | tuple):
                return all(plain(own) for own in value)
            return value is None or isinstance(value, bool | int | float | str)

        assert plain(state)

    def test_a_plain_run_goes_on_with_a_spread(self) -> None:
        optimizer = optimizer_of()
        plain = TorchOneCycle(optimizer, [0.3, 0.1], total_steps=60)
        for _ in range(30):
            optimizer.step()
            plain.step()
        _, scheduler = exploring(4)
        scheduler.load_state_dict(plain.state_dict())
        assert scheduler.ensemble.num_steps == 30
        values = scheduler.ensemble.replica_values(0)["lr/0"]
        assert values != pytest.approx(reference.one_cycle(30, 0.3, 60))
        assert scheduler.ensemble.base_values["lr/0"] == pytest.approx(
            reference.one_cycle(30, 0.3, 60)
        )

    def test_inside_sequential_lr_with_a_spread(self) -> None:
        optimizer = optimizer_of()
        warmup = lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=5)
        ours = hdet.OneCycleLR(
            optimizer,
            [0.3, 0.1],
            total_steps=20,
            spread_ratio=0.2,
            cycle_steps=5,
            auto_lr=True,
            warmup_steps=10,
            replicas=hdet.VirtualReplicas(2),
        )
        chain = lr_scheduler.SequentialLR(optimizer, [warmup, ours], [5])
        for step in range(20):
            if step >= 5:
                ours.ensemble.observe([1.0, 2.0])
            optimizer.step()
            chain.step()
        assert ours.ensemble.num_steps == 15
        assert ours.ensemble.base_values["lr/0"] < reference.one_cycle(9, 0.3, 20)
