"""Every equation against the literal reference, and the properties that follow from it."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hdet import functional
from tests import reference

counts = st.integers(1, 64)
spreads = st.floats(0.0, 0.99)
finite_losses = st.lists(st.floats(-10.0, 10.0), min_size=1, max_size=16)
temperatures = st.floats(1e-3, 10.0)


class TestSpread:
    @given(counts, spreads)
    def test_equals_the_reference(self, n: int, alpha: float) -> None:
        found = functional.spread_multipliers(n, alpha)
        assert found.dtype == torch.float64
        assert found.tolist() == pytest.approx(reference.multipliers(n, alpha), rel=1e-15)

    @given(counts, spreads)
    def test_sums_to_n_is_symmetric_and_stays_in_range(self, n: int, alpha: float) -> None:
        rho = functional.spread_multipliers(n, alpha)
        assert float(rho.sum()) == pytest.approx(n, rel=1e-14)
        assert torch.allclose(rho + rho.flip(0), torch.full_like(rho, 2.0), rtol=1e-15, atol=0)
        assert 1 - alpha <= float(rho.min())
        assert float(rho.max()) <= 1 + alpha
        assert bool((rho.diff() >= 0).all())

    @given(counts, spreads)
    def test_one_replica_or_no_spread_is_exactly_one(self, n: int, alpha: float) -> None:
        assert functional.spread_multipliers(n, 0.0).tolist() == [1.0] * n
        assert functional.spread_multipliers(1, alpha).tolist() == [1.0]

    def test_two_replicas_reach_both_ends(self) -> None:
        assert functional.spread_multipliers(2, 0.25).tolist() == [0.75, 1.25]

    def test_the_papers_spread(self) -> None:
        rho = functional.spread_multipliers(8, 1 / 9)
        assert [float(rho[0]), float(rho[-1])] == pytest.approx([8 / 9, 10 / 9], rel=1e-15)


class TestPermutation:
    @given(st.integers(-(2**63), 2**63), st.integers(0, 10**6), st.integers(0, 100), counts)
    def test_is_a_bijection(self, seed: int, cycle: int, index: int, n: int) -> None:
        found = functional.permutation(seed, cycle, index, n)
        assert found.dtype == torch.int64
        assert sorted(found.tolist()) == list(range(n))

    def test_ignores_and_leaves_every_global_generator(self) -> None:
        torch.manual_seed(1)
        random.seed(1)
        first = functional.permutation(0, 5, 1, 16)
        torch.manual_seed(2)
        random.seed(2)
        states = (torch.get_rng_state(), random.getstate())
        assert torch.equal(first, functional.permutation(0, 5, 1, 16))
        assert torch.equal(states[0], torch.get_rng_state())
        assert states[1] == random.getstate()

    def test_differs_between_cycles_hyperparameters_and_seeds(self) -> None:
        drawn = {
            tuple(functional.permutation(seed, cycle, index, 16).tolist())
            for seed in range(4)
            for cycle in range(20)
            for index in range(4)
        }
        assert len(drawn) == 4 * 20 * 4

    def test_is_uniform(self) -> None:
        """Chi-square of where replica 0 goes: 7 degrees of freedom, 24.3 is the 0.1 % point."""
        num_draws = 8000
        counts_R = torch.zeros(8)
        for cycle in range(num_draws):
            counts_R[functional.permutation(0, cycle, 0, 8)[0]] += 1
        expected = num_draws / 8
        assert float(((counts_R - expected) ** 2 / expected).sum()) < 24.3

    def test_hyperparameters_are_uncorrelated(self) -> None:
        rho = functional.spread_multipliers(8, 0.5)
        pairs = [
            (rho[functional.permutation(0, c, 0, 8)], rho[functional.permutation(0, c, 1, 8)])
            for c in range(2000)
        ]
        first, second = (torch.cat(own) for own in zip(*pairs, strict=True))
        assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.03

    def test_does_not_change_between_versions(self) -> None:
        """A run that is resumed under a newer hdet must deal the same values."""
        assert functional.permutation(0, 1, 0, 8).tolist() == [5, 7, 6, 2, 1, 4, 0, 3]


class TestSignal:
    @given(finite_losses, temperatures)
    def test_weights_equal_the_reference(self, losses: list[float], sigma: float) -> None:
        found = functional.softmax_weights(torch.tensor(losses, dtype=torch.float64), sigma)
        assert found.tolist() == pytest.approx(
            reference.weights(losses, sigma), rel=1e-11, abs=1e-300
        )
        assert float(found.sum()) == pytest.approx(1.0, rel=1e-14)

    @given(finite_losses, temperatures, st.floats(-5, 5))
    def test_a_common_shift_of_the_losses_changes_little(
        self, losses: list[float], sigma: float, shift: float
    ) -> None:
        here = functional.softmax_weights(torch.tensor(losses, dtype=torch.float64), sigma)
        there = functional.softmax_weights(torch.tensor(losses).double() + shift, sigma)
        assert torch.allclose(here, there, rtol=0, atol=1e-2)

    @given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(0.0, 5.0)), min_size=1, max_size=16))
    def test_hypergradient_equals_the_reference(self, pairs: list[tuple[float, float]]) -> None:
        values, losses = (list(own) for own in zip(*pairs, strict=True))
        w = reference.weights(losses, 0.1)
        found = functional.hypergradient(
            torch.tensor(values, dtype=torch.float64), torch.tensor(w, dtype=torch.float64)
        )
        assert found == pytest.approx(reference.delta(values, w), abs=1e-14)

    @given(st.integers(1, 32), st.floats(0, 10), st.floats(1e-6, 1.0), spreads)
    def test_equal_losses_say_exactly_nothing(
        self, n: int, loss: float, base: float, alpha: float
    ) -> None:
        weights = functional.softmax_weights(torch.full((n,), loss, dtype=torch.float64), 0.1)
        values = base * functional.spread_multipliers(n, alpha)
        assert functional.hypergradient(values, weights) == 0.0

    @given(finite_losses)
    def test_equal_values_say_exactly_nothing(self, losses: list[float]) -> None:
        weights = functional.softmax_weights(torch.tensor(losses), 0.1)
        values = torch.full((len(losses),), 0.1, dtype=torch.float64)
        assert functional.hypergradient(values, weights) == 0.0

    @given(st.lists(st.tuples(st.floats(0.1, 1.0), st.floats(0.0, 5.0)), min_size=2, max_size=16))
    def test_weights_that_do_not_sum_to_one_get_the_printed_form(
        self, pairs: list[tuple[float, float]]
    ) -> None:
        values, w = (list(own) for own in zip(*pairs, strict=True))
        assume(abs(sum(w) - 1.0) > 1e-3)
        found = functional.hypergradient(torch.tensor(values), torch.tensor(w))
        assert found == pytest.approx(reference.delta(values, w), abs=1e-5)

    def test_higher_values_with_lower_losses_pull_up(self) -> None:
        values = torch.tensor([1.0, 2.0, 3.0])
        weights = functional.softmax_weights(torch.tensor([3.0, 2.0, 1.0]), 1.0)
        assert functional.hypergradient(values, weights) > 0
        assert functional.hypergradient(values, weights.flip(0)) < 0


class TestMetaUpdate:
    @given(
        st.floats(-1, 1),
        st.floats(-1, 1),
        st.floats(1e-6, 1),
        st.floats(0, 0.999),
        st.floats(0, 2),
        st.floats(-1, 0.99),
    )
    def test_equals_the_reference(
        self, v: float, d: float, base: float, beta: float, lam: float, gamma: float
    ) -> None:
        found = functional.meta_update(
            v, d, base, meta_momentum=beta, meta_lr=lam, base_decay=gamma
        )
        assert found == reference.meta_update(v, d, base, beta, lam, gamma)

    def test_no_preference_and_no_decay_leave_the_base_alone(self) -> None:
        found = functional.meta_update(
            0.0, 0.0, 0.3, meta_momentum=0.9, meta_lr=0.5, base_decay=0.0
        )
        assert found == (0.0, 0.3)


class TestBaseDecay:
    @given(st.floats(1.5, 100), st.floats(1.5, 1e5), st.floats(0.5, 500))
    def test_literal_reproduces_the_printed_formula(
        self, f_div: float, f_final: float, k: float
    ) -> None:
        found = functional.base_decay(f_div, f_final, k, literal=True)
        assert found == pytest.approx(reference.gamma_literal(f_div, f_final, k), rel=1e-15)

    def test_the_printed_formula_grows_the_base_400_fold_at_pytorchs_defaults(self) -> None:
        gamma = functional.base_decay(25.0, 1e4, 50, literal=True)
        assert gamma < 0
        assert (1 - gamma) ** 50 == pytest.approx(400.0)

    @given(
        st.floats(1.5, 100),
        st.floats(1.5, 1e5),
        st.integers(1, 500),
        st.floats(0.01, 1.0),
        st.floats(1e-4, 1.0),
    )
    def test_corrected_lands_on_the_floor(
        self, f_div: float, f_final: float, k: int, start_ratio: float, max_lr: float
    ) -> None:
        gamma = functional.base_decay(f_div, f_final, k, start_ratio=start_ratio)
        floor = max_lr / (f_div * f_final)
        base = start_ratio * max_lr
        assert gamma == pytest.approx(reference.gamma_corrected(base, floor, k), abs=1e-13)
        for _ in range(k):
            _, base = functional.meta_update(
                0.0, 0.0, base, meta_momentum=0.9, meta_lr=0.5, base_decay=gamma
            )
        assert base == pytest.approx(floor, rel=1e-11)


class TestWarmNoise:
    @given(st.floats(0, 1e4), st.integers(1, 10**9), st.floats(0, 1))
    def test_equals_the_reference(self, norm: float, d: int, nu: float) -> None:
        assert functional.warm_noise_std(norm, d, nu) == pytest.approx(
            reference.warm_noise_std(norm, d, nu), rel=1e-14
        )


class TestSchedules:
    @pytest.mark.parametrize("three_phase", [False, True])
    @pytest.mark.parametrize("strategy", ["cos", "linear"])
    @pytest.mark.parametrize(("total", "pct"), [(100, 0.3), (37, 0.25), (1000, 0.05)])
    def test_one_cycle_is_pytorchs(
        self, total: int, pct: float, strategy: str, three_phase: bool
    ) -> None:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=1.0,
            total_steps=total,
            pct_start=pct,
            anneal_strategy=strategy,
            three_phase=three_phase,
            cycle_momentum=False,
        )
        for step in range(total):
            factor = functional.one_cycle(
                step, total, pct_start=pct, anneal_strategy=strategy, three_phase=three_phase
            )
            assert factor == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12, abs=1e-18)
            optimizer.step()
            scheduler.step()

    def test_one_cycle_equals_the_reference_and_stays_at_its_floor(self) -> None:
        for step in range(50):
            assert functional.one_cycle(step, 50) == pytest.approx(
                reference.one_cycle(step, 1.0, 50), rel=1e-12
            )
        assert functional.one_cycle(70, 50) == functional.one_cycle(49, 50)

    @pytest.mark.parametrize("shape", [functional.cosine, functional.linear])
    def test_shapes_start_at_the_peak_and_end_at_the_final_ratio(self, shape: object) -> None:
        assert callable(shape)
        assert shape(0, 100) == 1.0
        assert shape(100, 100, final_ratio=0.1) == pytest.approx(0.1)
        assert shape(5000, 100) == pytest.approx(0.0, abs=1e-15)
        warm = [shape(step, 100, warmup_steps=9) for step in range(10)]
        assert warm == pytest.approx([(i + 1) / 10 for i in range(10)])

    def test_hold_then_anneal(self) -> None:
        factors = [functional.hold_then_anneal(s, 100, anneal=0.4) for s in range(101)]
        assert factors[:61] == [1.0] * 61
        assert factors[80] == pytest.approx(0.5)
        assert factors[100] == 0.0
        assert functional.hold_then_anneal(99, 100, anneal=0.0) == 1.0

    @given(st.integers(1, 500), st.integers(0, 600), st.integers(0, 50))
    def test_factors_lie_between_zero_and_one(self, total: int, step: int, warmup: int) -> None:
        for shape in (functional.cosine, functional.linear, functional.hold_then_anneal):
            factor = shape(step, total, warmup_steps=warmup)
            assert 0.0 <= factor <= 1.0
            assert math.isfinite(factor)
