"""`LongHorizonController`, the wrappers, and the paper's controller with a relative temperature."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hdet
from hdet.functional import certainty, significance_step
from tests.evidence import BALANCING, UNJUDGED, compared, told, trend_of


class TestLongHorizon:
    def test_it_climbs_until_the_gradient_turns(self) -> None:
        controller = hdet.LongHorizonController()
        state, base, step = controller.init(), 1e-6, 0
        for _ in range(5):
            step += controller.next_cycle_steps(state, step)
            state, moved = controller.update(state, base, told(step, trend_of()))
            assert moved == pytest.approx(base * math.exp(0.4))
            base = moved
        assert step == 20
        state, moved = controller.update(state, base, told(24, trend_of(alignment=0.01)))
        assert moved == pytest.approx(0.7 * base)
        assert state == {
            "climbing": 0.0,
            "climbs_since": 0.0,
            "resume_step": 72.0,
            "turned_at": base,
            "too_high": 0.0,
            "quiet_cycles": 0.0,
            "num_told": 0.0,
            "imbalance": 0.0,
            "significance": 0.0,
        }

    def test_a_climb_that_was_cut_short_or_began_too_high_has_found_nothing(self) -> None:
        controller = hdet.LongHorizonController(climb_end=40)
        for step, alignment in ((4, 0.1), (40, -0.5), (40, 0.1)):
            told_then = told(step, trend_of(alignment=alignment))
            state, _ = controller.update(controller.init(), 1e-3, told_then)
            assert (state["climbing"], state["turned_at"]) == (0.0, 0.0)
        state, _ = controller.update(controller.init(), 1e-3, told(8, trend_of(alignment=0.1)))
        assert state["turned_at"] == 1e-3

    def test_it_leaps_while_hardly_anything_moves(self) -> None:
        controller = hdet.LongHorizonController()
        for moved, stride in ((5e-4, 2.4), (6e-4, 0.4), (math.inf, 0.4), (math.nan, 0.0)):
            _, found = controller.update(controller.init(), 1.0, told(4, trend_of(moved=moved)))
            assert found == pytest.approx(math.exp(stride)), moved

    def test_one_noisy_batch_does_not_end_it_before_anything_has_moved(self) -> None:
        controller = hdet.LongHorizonController()
        still, moving = (trend_of(alignment=0.1, moved=moved) for moved in (1e-6, 1e-2))
        state, base = controller.update(controller.init(), 1.0, told(4, still))
        assert (state["climbing"], base) == (1.0, pytest.approx(math.exp(2.4)))
        assert controller.update(controller.init(), 1.0, told(4, moving))[0]["climbing"] == 0.0

    def test_an_alignment_that_nobody_knows_does_not_end_the_climb(self) -> None:
        controller = hdet.LongHorizonController()
        evidence = told(4, trend_of(alignment=math.nan))
        state, base = controller.update(controller.init(), 1.0, evidence)
        assert state["climbing"] == 1.0
        assert base > 1.0

    @pytest.mark.parametrize("step", [100, 104])
    def test_the_climb_ends_in_time(self, step: int) -> None:
        controller = hdet.LongHorizonController(climb_end=100)
        state, base = controller.update(controller.init(), 1.0, told(step, trend_of()))
        assert (state["climbing"], base) == (0.0, 0.7)
        assert controller.update(controller.init(), 1.0, told(99, trend_of()))[1] > 1.0

    def test_it_settles_before_it_decides(self) -> None:
        controller = hdet.LongHorizonController(settle=3.0)
        state, _ = controller.update(controller.init(), 1.0, told(40, trend_of(alignment=1.0)))
        assert state["resume_step"] == 120.0
        assert controller.next_cycle_steps(state, 40) == 80
        for step in (60, 120):
            assert controller.update(state, 1.0, told(step, trend_of(-9.0))) == (state, 1.0)
        assert controller.update(state, 1.0, told(132, trend_of(-9.0)))[1] > 1.0

    @given(
        st.floats(-2, 2), st.floats(0, 2), st.floats(0.01, 2), st.floats(1e-6, 10), st.floats(0, 50)
    )
    def test_the_balance_is_a_significance_step_in_strides_that_shorten(
        self, slope: float, stderr: float, scale: float, base: float, quiet: float
    ) -> None:
        controller = hdet.LongHorizonController(stride=0.5, doubt=1.0, patience=5.0)
        trend = trend_of(slope, stderr=stderr, scale=scale)
        before = {**BALANCING, "quiet_cycles": quiet}
        state, found = controller.update(before, base, told(500, trend))
        stride = 0.5 / (1.0 + quiet / 5.0)
        z = max(-4.0, min(4.0, told(500, trend).significance))
        r = max(-1.0, min(1.0, slope / scale))
        change = significance_step(r, z, stride=stride, doubt=1.0)
        assert found == pytest.approx(base * math.exp(change), rel=1e-12)
        certain = certainty(z, doubt=1.0)
        left = 1.0 - certain
        assert state == pytest.approx(
            {
                "climbing": 0.0,
                "climbs_since": 0.0,
                "resume_step": 0.0,
                "turned_at": 0.0,
                "too_high": 0.0,
                "quiet_cycles": max(0.0, quiet + 1.0 - 3.0 * certain),
                "num_told": left,
                "imbalance": left * r,
                "significance": left * z,
            }
        )

    def test_evidence_lengthens_the_strides_again(self) -> None:
        controller = hdet.LongHorizonController()
        state = {**BALANCING, "quiet_cycles": 12.0}
        strides = []
        for _ in range(12):
            state, moved = controller.update(state, 1.0, told(500, trend_of(-1.0, stderr=0.01)))
            strides.append(math.log(moved))
        assert strides[:9] == sorted(strides[:9])
        assert strides[0] == pytest.approx(0.6 / 7.0 * certainty(4.0, doubt=2.7))
        assert min(strides[8:]) > 0.5
        assert state["quiet_cycles"] == 0.0

    def test_cycles_grow_with_the_run(self) -> None:
        controller = hdet.LongHorizonController()
        found = [controller.next_cycle_steps(BALANCING, step) for step in (20, 100, 1000, 12345)]
        assert found == [10, 10, 100, 1234]

    @pytest.mark.parametrize("state", [{**BALANCING, "climbing": 1.0}, BALANCING])
    def test_without_a_trend_or_a_number_nothing_moves_when_balancing(
        self, state: dict[str, float]
    ) -> None:
        controller = hdet.LongHorizonController()
        assert controller.update(state, 0.3, told(50, None)) == (state, 0.3)
        nothing = told(50, trend_of(math.nan))
        quiet = {**BALANCING, "quiet_cycles": 1.0, "num_told": 1.0}
        assert controller.update(BALANCING, 0.3, nothing) == (quiet, 0.3)

    def test_it_finds_the_balance_in_a_closed_loop(self) -> None:
        """Progress falls and noise grows with the rate; they cancel at 0.5."""
        for start in (1e-3, 20.0):
            controller, state, base = hdet.LongHorizonController(), BALANCING, start
            for step in range(100, 200):
                slope = math.log(base / 0.5)
                trend = trend_of(slope, scale=1.0 + abs(slope))
                state, base = controller.update(state, base, told(step, trend))
            assert base == pytest.approx(0.5, rel=0.1)

    def test_it_needs_a_trend_and_starts_by_itself(self) -> None:
        controller = hdet.LongHorizonController(start_value=3e-5)
        assert (controller.start_step, controller.start_value) == (0, 3e-5)
        assert controller.needs_trend
        shown = repr(hdet.LongHorizonController(stride=0.25, climb_end=7))
        assert "stride=0.25" in shown
        assert "climb_end=7" in shown


class Doubling(hdet.PaperController):
    """Doubles every time, and counts what it saw."""

    def init(self) -> dict[str, float]:
        return {"count": 0.0}

    def update(
        self, state: dict[str, float], base: float, evidence: hdet.Evidence
    ) -> tuple[dict[str, float], float]:
        return {**state, "count": state["count"] + 1.0}, 2.0 * base


class TestWrappers:
    def test_bounded_cuts_what_is_decided(self) -> None:
        controller = hdet.Bounded(Doubling(), 1.0, 3.0)
        state, base = controller.init(), 1.0
        found = []
        for step in range(3):
            state, base = controller.update(state, base, told(step, None))
            found.append(base)
        assert found == [2.0, 3.0, 3.0]
        assert controller.update(state, 0.1, told(4, None))[1] == 1.0

    @pytest.mark.parametrize(("slope", "opens"), [(-0.21, True), (0.21, True), (0.19, False)])
    def test_gated_by_a_trend(self, slope: float, opens: bool) -> None:
        controller = hdet.Gated(Doubling())
        state, base = controller.update(controller.init(), 1.0, told(0, trend_of(slope)))
        assert base == (2.0 if opens else 1.0)
        assert state["count"] == 1.0

    def test_gated_by_a_regression_of_the_losses(self) -> None:
        controller = hdet.Gated(Doubling())
        clear = compared([1.0, 2.0, 4.0, 8.0], [4.0, 3.0, 2.0, 1.01])
        noise = compared([1.0, 2.0, 4.0, 8.0], [2.0, 3.0, 1.9, 2.9])
        assert clear.significance < -2.0
        assert abs(noise.significance) < 2.0
        assert controller.update(controller.init(), 1.0, clear)[1] == 2.0
        assert controller.update(controller.init(), 1.0, noise)[1] == 1.0

    def test_nothing_passes_a_gate_that_cannot_be_judged(self) -> None:
        for evidence in UNJUDGED:
            assert hdet.Gated(Doubling()).update({"count": 0.0}, 1.0, evidence)[1] == 1.0

    def test_cool_down_waits_after_a_move(self) -> None:
        controller = hdet.CoolDown(Doubling(), num_cycles=2)
        state, base = controller.init(), 1.0
        found = []
        for step in range(7):
            state, base = controller.update(state, base, told(step, None))
            found.append(base)
        assert found == [2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 8.0]
        assert state["count"] == 3.0

    def test_cool_down_does_not_wait_where_nothing_moved(self) -> None:
        controller = hdet.CoolDown(hdet.LongHorizonController())
        state = {**controller.init(), **BALANCING}
        state, base = controller.update(state, 1.0, told(50, trend_of(0.0)))
        assert (state["cooling"], base) == (0.0, 1.0)
        state, base = controller.update(state, 1.0, told(50, trend_of(-1.0)))
        assert state["cooling"] == 1.0
        assert base > 1.0

    def test_wrappers_pass_the_rest_on(self) -> None:
        inner = hdet.LongHorizonController(start_value=3e-5, cycle_steps=33)
        controller = hdet.Bounded(hdet.Gated(hdet.CoolDown(inner)), 1e-9, 1.0)
        assert (controller.start_step, controller.start_value) == (0, 3e-5)
        assert controller.needs_trend
        assert controller.next_cycle_steps({**BALANCING, "cooling": 0.0}, 50) == 33
        for part in ("Bounded(high=1.0, low=1e-09", "Gated(", "CoolDown(", "cycle_steps=33"):
            assert part in repr(controller)

    def test_they_work_in_a_run(self) -> None:
        param = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
        optimizer = torch.optim.SGD([param], lr=0.1)
        inner = hdet.LongHorizonController(start_value=1e-3)
        controller = hdet.Bounded(hdet.CoolDown(inner), 1e-3, 3e-3)
        scheduler = hdet.AutoLR(optimizer, total_steps=60, controller=controller)
        rates = []
        for _ in range(30):
            param.grad = param.detach().clone()
            optimizer.step()
            scheduler.step()
            rates.append(scheduler.get_last_lr()[0])
        assert max(rates) == 3e-3
        assert len(set(rates)) > 2


class TestRelativeTemperature:
    @given(
        st.lists(st.floats(0.0, 1.0), min_size=3, max_size=8),
        st.floats(1e-3, 1e3),
        st.floats(-10.0, 10.0),
    )
    def test_scaling_and_shifting_the_losses_changes_nothing(
        self, losses: list[float], scale: float, shift: float
    ) -> None:
        spread = torch.tensor(losses, dtype=torch.float64).std()
        if spread < 1e-3:
            losses = [*losses[:-1], losses[0] + 0.5]
        controller = hdet.PaperController(temperature=1.0, relative_temperature=True)
        values = (0.1 * hdet.functional.spread_multipliers(len(losses), 0.3)).tolist()
        moved = [scale * loss + shift for loss in losses]
        found, other = (
            controller.update(controller.init(), 0.1, compared(values, own))[1]
            for own in (losses, moved)
        )
        assert other == pytest.approx(found, rel=1e-9)

    def test_the_papers_own_temperature_is_not(self) -> None:
        """Negative control."""
        controller = hdet.PaperController(temperature=1.0)
        found = [
            controller.update(controller.init(), 0.1, compared([0.05, 0.1, 0.15], own))[1]
            for own in ([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
        ]
        assert abs(found[0] - found[1]) > 1e-3

    @pytest.mark.parametrize("losses", [[], [1.0], [2.0, 2.0, 2.0]])
    def test_losses_that_prefer_nothing_move_nothing(self, losses: list[float]) -> None:
        controller = hdet.PaperController(relative_temperature=True)
        values = [0.1 * (i + 1) for i in range(len(losses))]
        assert controller.update(controller.init(), 0.1, compared(values, losses))[1] == 0.1

    def test_one_cycle_takes_it(self) -> None:
        settings: dict[str, Any] = {"spread_ratio": 0.3, "auto_lr": True, "cycle_steps": 2}
        param = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
        scheduler = hdet.OneCycleLR(
            optimizer,
            0.1,
            total_steps=10,
            replicas=hdet.VirtualReplicas(3),
            relative_temperature=True,
            **settings,
        )
        assert "relative_temperature=True" in repr(scheduler.ensemble.controller)
