"""What a slope says, as pure functions: `certainty`, `significance_step`, `regression_slope`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hdet import functional

ANY = st.floats(allow_nan=False)
"""Infinities too: a slope without an error has an infinite significance."""


def step_of(imbalance: float, significance: float, *, doubt: float = 1.4) -> float:
    return functional.significance_step(imbalance, significance, stride=0.6, doubt=doubt)


class TestCertainty:
    @given(st.floats(-1e3, 1e3), st.floats(0.1, 10.0))
    def test_it_is_the_printed_formula(self, z: float, doubt: float) -> None:
        expected = z**4 / (z**4 + doubt**4)
        found = functional.certainty(z, doubt=doubt)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-300)

    @given(ANY, st.floats(0.0, 100.0))
    def test_it_is_a_fraction_whatever_the_sign(self, z: float, doubt: float) -> None:
        found = functional.certainty(z, doubt=doubt)
        assert 0.0 <= found <= 1.0
        assert functional.certainty(-z, doubt=doubt) == found

    @given(st.floats(0.01, 100.0), st.floats(0.01, 100.0))
    def test_it_grows_with_significance(self, z: float, more: float) -> None:
        found, other = (functional.certainty(own, doubt=2.7) for own in (z, z + more))
        assert found < other or other == 1.0

    def test_what_the_docstring_says_of_noise(self) -> None:
        assert functional.certainty(1.0, doubt=2.7) == pytest.approx(0.02, rel=0.1)

    def test_ends(self) -> None:
        assert functional.certainty(2.7, doubt=2.7) == 0.5
        assert functional.certainty(math.inf, doubt=2.7) == 1.0
        assert functional.certainty(1e-300, doubt=0.0) == 1.0, "any sign is believed"
        for nothing in (0.0, -0.0, math.nan):
            assert functional.certainty(nothing, doubt=2.7) == 0.0
            assert functional.certainty(nothing, doubt=0.0) == 0.0

    @pytest.mark.parametrize("size", [1e-320, 1e-200, 1e200, 1e308])
    def test_sizes_whose_square_no_float_can_hold(self, size: float) -> None:
        assert functional.certainty(size, doubt=size) == pytest.approx(0.5, rel=1e-3)
        assert functional.certainty(size, doubt=1.0) == (1.0 if size > 1.0 else 0.0)


class TestSignificanceStep:
    @given(ANY, ANY, st.floats(0.0, 100.0))
    def test_it_goes_down_the_slope_and_at_most_a_stride(
        self, imbalance: float, significance: float, doubt: float
    ) -> None:
        found = step_of(imbalance, significance, doubt=doubt)
        assert abs(found) <= 0.6
        assert math.copysign(1.0, found) * imbalance <= 0.0 or found == 0.0

    @given(st.floats(-2.0, 2.0), st.floats(-1e3, 1e3), st.floats(0.1, 10.0))
    def test_it_is_the_printed_formula(self, imbalance: float, z: float, doubt: float) -> None:
        one_sided = max(-1.0, min(1.0, imbalance))
        expected = -0.6 * one_sided * z**4 / (z**4 + doubt**4)
        assert step_of(imbalance, z, doubt=doubt) == pytest.approx(expected, rel=1e-12, abs=1e-300)

    @given(ANY, ANY)
    def test_pure_noise_is_symmetric(self, imbalance: float, significance: float) -> None:
        assert step_of(-imbalance, -significance) == -step_of(imbalance, significance)

    @given(st.floats(0.01, 1e3), st.floats(0.01, 10.0))
    def test_it_grows_with_significance_and_with_imbalance(self, z: float, more: float) -> None:
        assert step_of(-1.0, -z) <= step_of(-1.0, -z - more)
        assert step_of(-0.5, -z) == pytest.approx(0.5 * step_of(-1.0, -z))

    @pytest.mark.parametrize("where", range(2))
    def test_nan_changes_nothing(self, where: int) -> None:
        arguments = [-1.0, -2.0]
        assert step_of(*arguments) > 0.0
        arguments[where] = math.nan
        assert step_of(*arguments) == 0.0

    def test_half_a_stride_at_the_doubt_and_a_whole_one_beyond(self) -> None:
        assert step_of(-1.0, -1.4) == pytest.approx(0.3)
        assert step_of(-1.0, -math.inf) == 0.6
        assert step_of(-math.inf, -math.inf) == 0.6
        assert step_of(1.0, math.inf) == -0.6
        assert step_of(0.0, -math.inf) == step_of(-1.0, 0.0) == 0.0


class TestRegressionSlope:
    @given(st.lists(st.tuples(st.floats(1e-6, 1e2), st.floats(-5.0, 5.0)), min_size=4, max_size=16))
    def test_equals_numpys_polyfit(self, pairs: list[tuple[float, float]]) -> None:
        values, losses = (np.array(own) for own in zip(*pairs, strict=True))
        x = np.log(values)
        assume(x.std() > 1e-2)
        slope, stderr = functional.regression_slope(torch.tensor(values), torch.tensor(losses))
        (expected, intercept), rest, *_ = np.polyfit(x, losses, 1, full=True)
        assert slope == pytest.approx(expected, rel=1e-8, abs=1e-8)
        squares = float(((losses - expected * x - intercept) ** 2).sum())
        assert rest.size == 0 or rest[0] == pytest.approx(squares, rel=1e-6, abs=1e-12)
        textbook = math.sqrt(squares / (len(x) - 2) / float(((x - x.mean()) ** 2).sum()))
        assert stderr == pytest.approx(textbook, rel=1e-6, abs=1e-8)

    def test_its_error_is_polyfits_covariance(self) -> None:
        values = np.geomspace(1e-3, 1e-1, 12)
        losses = np.sin(np.arange(12.0))
        _, covariance = np.polyfit(np.log(values), losses, 1, cov=True)
        _, stderr = functional.regression_slope(torch.tensor(values), torch.tensor(losses))
        assert stderr == pytest.approx(math.sqrt(covariance[0, 0]), rel=1e-10)

    @given(st.floats(1e-3, 1e3), st.integers(3, 8))
    def test_equal_values_say_nothing(self, value: float, count: int) -> None:
        # The mean of logs may differ from each of them in the last bit.
        slope, stderr = functional.regression_slope([value] * count, list(range(count)))
        assert math.isnan(slope)
        assert math.isnan(stderr)
