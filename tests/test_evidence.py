"""`Evidence`, and how `LongHorizonController` adds it up until it has acted on it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hdet
from tests.evidence import BALANCING, NO_EVIDENCE, UNJUDGED, compared, of, told, trend_of


class Literal:
    """The balance, from `controllers/long_horizon.py`'s docstring: what is unheeded is a list.

    Forgetting in proportion is a weight on every entry, rather than three sums.
    """

    def __init__(self, *, stride: float, doubt: float, patience: float) -> None:
        self.stride, self.doubt, self.patience = stride, doubt, patience
        self.told: list[tuple[float, ...]] = []  # weight, r, z
        self.quiet, self.log = 0.0, 0.0

    def hear(self, r: float, z: float) -> None:
        self.told.append((1.0, r, max(-4.0, min(4.0, z))))
        n = math.fsum(weight for weight, _, _ in self.told)
        mean = math.fsum(weight * own for weight, own, _ in self.told) / n
        total = math.fsum(weight * own for weight, _, own in self.told) / math.sqrt(n)
        certain = total**4 / (total**4 + self.doubt**4)
        self.log -= self.stride / (1.0 + self.quiet / self.patience) * mean * certain
        self.quiet = max(0.0, self.quiet + 1.0 - 3.0 * certain)
        self.told = [(weight * (1.0 - certain), *own) for weight, *own in self.told]


def values_after(
    trends: Iterable[hdet.Trend], *, pooled: bool = True, **settings: float
) -> list[float]:
    """The value after each cycle, from 1; without pooling each cycle stands for itself alone."""
    controller = hdet.LongHorizonController(**settings)
    state, base, found = BALANCING, 1.0, []
    for cycle, trend in enumerate(trends):
        state, base = controller.update(
            state if pooled else {**state, **NO_EVIDENCE}, base, told(500 + cycle, trend)
        )
        found.append(base)
    return found


class TestPooling:
    @given(
        st.lists(st.tuples(st.floats(-6.0, 6.0), st.floats(0.01, 1.0)), min_size=1, max_size=40),
        st.floats(0.5, 5.0),
        st.floats(0.5, 20.0),
    )
    def test_the_balance_equals_a_literal_reference(
        self, cycles: list[tuple[float, float]], doubt: float, patience: float
    ) -> None:
        cycles = [(z if abs(z) > 1e-3 else 0.0, r) for z, r in cycles]
        literal = Literal(stride=0.5, doubt=doubt, patience=patience)
        expected = []
        for z, r in cycles:
            literal.hear(math.copysign(r, z) if z else 0.0, z)
            expected.append(math.exp(literal.log))
        trends = [of(z, imbalance=r) if z else trend_of(0.0) for z, r in cycles]
        found = values_after(trends, stride=0.5, doubt=doubt, patience=patience)
        assert found == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("sign", [-1.0, 1.0])
    def test_a_faint_slope_that_says_the_same_for_long_moves_the_value(self, sign: float) -> None:
        """z = 0.7 each cycle: together 2.7 after fifteen of them."""
        logs = [-sign * math.log(value) for value in values_after([of(0.7 * sign)] * 40)]
        assert logs == sorted(logs), "each cycle as it says"
        assert logs[0] < 0.002, "one of them is noise"
        assert logs[19] > 0.1
        assert logs[39] > 0.2

    @pytest.mark.parametrize("sign", [-1.0, 1.0])
    def test_without_pooling_it_never_would(self, sign: float) -> None:
        """Negative control."""
        alone = values_after([of(0.7 * sign)] * 1000, pooled=False)
        assert max(abs(math.log(value)) for value in alone) < 0.02

    def test_slopes_that_contradict_each_other_add_up_to_nothing(self) -> None:
        together = values_after([of(0.7), of(-0.7)] * 20)
        assert max(abs(math.log(value)) for value in together) < 0.01

    def test_what_has_been_acted_on_is_forgotten(self) -> None:
        controller = hdet.LongHorizonController()
        full = {**BALANCING, "num_told": 9.0, "imbalance": -9.0, "significance": -36.0}
        state, base = controller.update(full, 1.0, told(500, of(-4.0, imbalance=1.0)))
        assert base == pytest.approx(math.exp(0.6), rel=0.01)
        assert all(abs(state[key]) < 0.1 for key in NO_EVIDENCE), "Z = 12.6: nearly all of it"
        _, next_base = controller.update(state, 1.0, told(600, of(1.5, imbalance=1.0)))
        assert next_base < 1.0, "so that the next cycle speaks for itself"
        doubted = {**BALANCING, "num_told": 1.0, "imbalance": -1.0, "significance": -0.1}
        state, _ = controller.update(doubted, 1.0, told(500, of(-0.1, imbalance=1.0)))
        assert state["num_told"] == pytest.approx(2.0, rel=1e-4), "what has not is kept"

    def test_one_cycle_cannot_claim_more_than_four(self) -> None:
        """Of few samples, a larger z is an accident: infinite is not heard forever."""
        found = [values_after([of(z, imbalance=1.0)])[0] for z in (-4.0, -40.0)]
        without_error = values_after([trend_of(-1.0, stderr=0.0)])[0]
        assert found == [without_error] * 2
        expected = 0.6 * 4.0**4 / (4.0**4 + 2.7**4)
        assert math.log(without_error) == pytest.approx(expected)
        assert math.log(values_after([of(-3.9, imbalance=1.0)])[0]) < expected
        outvoted = [trend_of(-1.0, stderr=0.0), *[of(3.0, imbalance=1.0)] * 8]
        assert values_after(outvoted)[-1] < 1.0


class TestEvidence:
    @pytest.mark.parametrize("evidence", UNJUDGED)
    def test_what_cannot_be_judged_is_not_significant(self, evidence: hdet.Evidence) -> None:
        assert evidence.significance == 0.0

    @pytest.mark.parametrize(("slope", "scale"), [(-0.3, 0.6), (0.3, 0.3), (0.0, 1.0), (-2.0, 8.0)])
    def test_the_imbalance_is_the_slope_over_the_magnitudes(
        self, slope: float, scale: float
    ) -> None:
        assert told(0, trend_of(slope, scale=scale)).imbalance == pytest.approx(slope / scale)

    @pytest.mark.parametrize("sign", [-1.0, 1.0])
    def test_rounding_takes_no_imbalance_beyond_one(self, sign: float) -> None:
        assert told(0, trend_of(sign * (1.0 + 1e-9), scale=1.0)).imbalance == sign

    @pytest.mark.parametrize(
        "evidence",
        [
            told(0, None),
            compared([1.0, 2.0, 4.0], [3.0, 2.0, 1.0]),
            told(0, trend_of(math.nan)),
            told(0, trend_of(-math.inf)),
            told(0, trend_of(1.0, scale=math.nan)),
            told(0, trend_of(1.0, scale=math.inf)),
            told(0, trend_of(1.0, scale=0.0)),
        ],
    )
    def test_what_cannot_be_judged_has_no_imbalance(self, evidence: hdet.Evidence) -> None:
        assert evidence.imbalance == 0.0

    def test_without_an_error_anything_is_significant(self) -> None:
        assert told(0, trend_of(-1e-9, stderr=0.0)).significance == -math.inf


class TestTrust:
    @given(
        st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=30),
        st.floats(-3.0, 3.0),
        st.floats(0.0, 1.0),
    )
    def test_the_slope_leans_towards_the_turn(
        self, slopes: list[float], log_turn: float, trust: float
    ) -> None:
        """The same as without an anchor, from slopes to which the lean was added by hand."""
        controller = hdet.LongHorizonController(trust=trust)
        plain = hdet.LongHorizonController(trust=0.0)
        leaning = state = {**BALANCING, "turned_at": math.exp(log_turn)}
        base = expected = 1.0
        for cycle, slope in enumerate(slopes):
            lean = trust * (math.log(expected) - log_turn) * 2.0
            by_hand = told(cycle, trend_of(slope + lean, stderr=0.3, scale=2.0))
            as_is = told(cycle, trend_of(slope, stderr=0.3, scale=2.0))
            leaning, base = controller.update(leaning, base, as_is)
            state, expected = plain.update(state, expected, by_hand)
        assert base == pytest.approx(expected, rel=1e-6)

    def test_a_biased_slope_goes_only_as_far_as_it_is_one_sided(self) -> None:
        """r = -0.3 for ever: with trust one e-fold above the turn, without it without end."""
        ends = []
        for trust in (0.3, 0.0):
            controller, base = hdet.LongHorizonController(trust=trust), 1.0
            state = {**BALANCING, "turned_at": 1.0}
            for cycle in range(200):
                trend = trend_of(-0.3, stderr=0.05)
                state, base = controller.update(state, base, told(cycle, trend))
            ends.append(math.log(base))
        assert ends[0] == pytest.approx(1.0, abs=0.15)
        assert ends[1] > 10.0, "negative control"

    def test_a_state_from_before_there_was_trust_has_none(self) -> None:
        controller = hdet.LongHorizonController()
        heard = told(1, trend_of(-0.3))
        plain = hdet.LongHorizonController(trust=0.0).update(BALANCING, 5.0, heard)
        assert controller.update(BALANCING, 5.0, heard) == plain
