"""What a slope says, as pure functions: `significance_step` and `regression_slope`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hdet import functional

ANY = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)


def step_of(slope: float, stderr: float, scale: float, *, doubt: float = 1.4) -> float:
    return functional.significance_step(slope, stderr, scale=scale, stride=0.6, doubt=doubt)


class TestSignificanceStep:
    @given(ANY, st.floats(min_value=0.0, allow_infinity=False), POSITIVE, st.floats(0.0, 100.0))
    def test_it_goes_down_the_slope_and_at_most_a_stride(
        self, slope: float, stderr: float, scale: float, doubt: float
    ) -> None:
        found = step_of(slope, stderr, scale, doubt=doubt)
        assert abs(found) <= 0.6
        assert found * slope <= 0.0

    @given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0.1, 10.0))
    def test_it_is_the_printed_formula(
        self, slope: float, stderr: float, scale: float, doubt: float
    ) -> None:
        z = slope / stderr
        one_sided = max(-1.0, min(1.0, slope / scale))
        expected = -0.6 * one_sided * z**4 / (z**4 + doubt**4)
        found = step_of(slope, stderr, scale, doubt=doubt)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-300)

    @given(st.floats(-1e3, 1e3), st.floats(0.0, 1e3), st.floats(1e-3, 1e3))
    def test_the_unit_of_the_loss_does_not_matter(
        self, slope: float, stderr: float, scale: float
    ) -> None:
        other = step_of(1024.0 * slope, 1024.0 * stderr, 1024.0 * scale)
        assert other == pytest.approx(step_of(slope, stderr, scale), rel=1e-12)

    @given(ANY, st.floats(min_value=0.0, allow_infinity=False), POSITIVE)
    def test_pure_noise_is_symmetric(self, slope: float, stderr: float, scale: float) -> None:
        assert step_of(-slope, stderr, scale) == -step_of(slope, stderr, scale)

    @given(st.floats(0.01, 100.0), st.floats(0.01, 100.0))
    def test_certainty_grows_with_significance(self, stderr: float, more: float) -> None:
        assert step_of(-1.0, stderr, 1.0) > step_of(-1.0, stderr + more, 1.0)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("where", range(3))
    def test_what_is_not_a_finite_number_changes_nothing(self, bad: float, where: int) -> None:
        arguments = [-1.0, 0.1, 1.0]
        assert step_of(*arguments) > 0.0
        arguments[where] = bad
        assert step_of(*arguments) == 0.0

    def test_half_a_stride_at_the_doubt_and_a_whole_one_beyond(self) -> None:
        assert step_of(-1.4, 1.0, 1.4) == pytest.approx(0.3)
        assert step_of(-1.0, 0.0, 1.0) == 0.6
        assert step_of(0.0, 0.0, 1.0) == step_of(-1.0, 0.0, 0.0) == 0.0

    @pytest.mark.parametrize("size", [1e-320, 1e-200, 1e200, 1e308])
    def test_sizes_whose_square_no_float_can_hold(self, size: float) -> None:
        assert step_of(-size, 0.0, size) == pytest.approx(0.6)
        assert step_of(-size, size, size, doubt=1.0) == pytest.approx(0.3, rel=1e-3)


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
