r"""A controller that needs no starting value: it climbs from almost nothing, then balances.

*Climb.* The rate is multiplied every few steps until the gradient no longer points down the way
that the parameters have just come, once they have moved at all. That climb is the warmup.

*Balance.* From then on, once a cycle,

$\log h \gets \log h - \frac{\kappa}{1 + q / K} \, \bar r \, \frac{Z^4}{Z^4 + z_0^4},
\qquad \bar r = \frac{1}{n} \sum_i \frac{s_i}{|s_i|}, \quad Z = \frac{1}{\sqrt n} \sum_i z_i$,

s being the signal's slope, |s| the sum of the magnitudes of its parts, z its significance, the sums
over the n cycles whose evidence has not been acted on yet, and q the number of quiet cycles lately:
how far the two parts are from balance, believed as far as it is certain, in strides that shorten
while nothing is. What has been acted on is forgotten to the same extent. A clear signal moves the
rate by up to e^kappa a cycle, a faint one once it has said the same often enough, and pure noise
moves it by a bounded amount however long it lasts. Cycles grow with the step, so that a decision
always rests on a fixed fraction of the run so far.

*Trust.* The turn of the climb at h_0 is a guess by itself, good to a factor of three or so. The
balance leans on it, $s \gets s + a \, |s| \log(h / h_0)$: hardly anywhere near it, and far away
only a one-sided slope goes on against it. That holds where a slope is biased, not only noisy.

*Freeze.* For an anneal the value must be left alone: `hdet.Ensemble.freeze`.
"""

from __future__ import annotations

import math

from hdet import checks, functional
from hdet.controllers.base import AbstractController, Evidence
from hdet.signals.base import Trend

_FORGOTTEN = 3.0
"""Quiet cycles that a fully significant one makes up for, itself included."""
_ANEW = 1e-3
"""Factor on a start that was too high."""
_MOST = 4.0
"""The significance that one cycle may claim: of few samples, more is an accident."""


class LongHorizonController(AbstractController):
    """Climbs from ``start_value``, then balances progress against noise, then freezes.

    The defaults were chosen on eleven small tasks (``docs/method.md``), and are meant to be left
    alone.

    Args:
        start_value: where the climb starts, above 0: far below any useful value.
        climb_stride: log of the factor of a climbing cycle.
        leap_stride: the same while the parameters have hardly moved at all. Nothing but `climb_end`
            ends the climb there.
        leap_below: "hardly": a movement below this fraction of the parameters' norm.
        climb_steps: steps of a climbing cycle, at least 3.
        climb_end: step at which the climb ends at the latest; None for no limit.
        back_off: factor on the value where the climb turns, in (0, 1]: it has gone a bit far.
        settle: the first decision waits until this multiple of the climb's steps, at least 1.
        stride: kappa, the largest step of the log of the value in a cycle.
        doubt: z_0, the significance of the evidence at which half a step is taken.
        trust: a, how far the value at which the climb turned is trusted: the part of the slope's
            magnitude that each e-fold away from it adds. 0 forgets it.
        patience: K, the cycles without significant evidence after which strides are half as long,
            above 0. Noise then moves the value by a finite amount, however long it goes on; three
            of them are forgotten for each significant cycle.
        cycle_steps: shortest cycle after the climb, at least 3.
        cycle_growth: a cycle's length as a fraction of the steps so far.
    """

    def __init__(
        self,
        *,
        start_value: float = 1e-6,
        climb_stride: float = 0.4,
        leap_stride: float = 2.4,
        leap_below: float = 6e-4,
        climb_steps: int = 4,
        climb_end: int | None = None,
        back_off: float = 0.7,
        settle: float = 3.0,
        stride: float = 0.6,
        doubt: float = 2.7,
        trust: float = 0.3,
        patience: float = 2.0,
        cycle_steps: int = 10,
        cycle_growth: float = 0.1,
    ) -> None:
        self._start_value = checks.real(
            "start_value", start_value, low=0.0, low_open=True, remedy="the default is 1e-6"
        )
        self.climb_stride = checks.real(
            "climb_stride", climb_stride, low=0.0, low_open=True, remedy="the default is 0.4"
        )
        self.leap_stride = checks.real(
            "leap_stride", leap_stride, low=self.climb_stride, remedy="the default is 2.4"
        )
        self.leap_below = checks.real(
            "leap_below", leap_below, low=0.0, remedy="the default is 6e-4"
        )
        self.climb_steps = checks.integer(
            "climb_steps", climb_steps, minimum=3, remedy="the default is 4"
        )
        self.climb_end = checks.optional_integer(
            "climb_end", climb_end, minimum=1, remedy="None sets no limit"
        )
        self.back_off = checks.real(
            "back_off", back_off, low=0.0, high=1.0, low_open=True, remedy="the default is 0.7"
        )
        self.settle = checks.real("settle", settle, low=1.0, remedy="the default is 3.0")
        self.stride = checks.real("stride", stride, low=0.0, remedy="the default is 0.6")
        self.doubt = checks.real("doubt", doubt, low=0.0, remedy="the default is 2.7")
        self.trust = checks.real("trust", trust, low=0.0, remedy="the default is 0.3")
        self.patience = checks.real(
            "patience", patience, low=0.0, low_open=True, remedy="the default is 2.0"
        )
        self.cycle_steps = checks.integer(
            "cycle_steps", cycle_steps, minimum=3, remedy="the default is 10"
        )
        self.cycle_growth = checks.real(
            "cycle_growth", cycle_growth, low=0.0, remedy="the default is 0.1"
        )

    @property
    def start_step(self) -> int:
        """It controls from the first step."""
        return 0

    @property
    def start_value(self) -> float:
        """Where the climb starts."""
        return self._start_value

    @property
    def needs_trend(self) -> bool:
        """It balances a slope."""
        return True

    def init(self) -> dict[str, float]:
        """Climbing, with no evidence yet: ``num_told`` cycles, and the sums of their r and z."""
        return {
            "climbing": 1.0,
            "climbs_since": 0.0,
            "resume_step": 0.0,
            "turned_at": 0.0,
            "too_high": 0.0,
            "quiet_cycles": 0.0,
            "num_told": 0.0,
            "imbalance": 0.0,
            "significance": 0.0,
        }

    def update(
        self, state: dict[str, float], base: float, evidence: Evidence
    ) -> tuple[dict[str, float], float]:
        """Climb, or balance, or leave it alone."""
        step, trend = evidence.step, evidence.trend
        if trend is None or math.isnan(trend.moved):  # nothing was sampled: nothing is known
            return state, base
        if state["climbing"]:
            return self._climb(state, base, step, trend)
        if step <= state["resume_step"]:
            return state, base
        return self._balance(state, base, evidence)

    def _climb(
        self, state: dict[str, float], base: float, step: int, trend: Trend
    ) -> tuple[dict[str, float], float]:
        """On, or to the end of the climb where it has turned or lasted too long."""
        taken = step - int(state["climbs_since"])
        too_long = self.climb_end is not None and taken >= self.climb_end
        # The first steps of a climb are too short to have gone too far: a gradient that does not
        # point down them is a noisy one, and one noisy batch must not end the climb there.
        hardly_moved = trend.moved < self.leap_below
        if (trend.alignment >= 0.0 and not hardly_moved) or too_long:
            wait = int(state["climbs_since"]) + max(taken, int(self.settle * taken))
            # A climb that was cut short, or turned where it began, has found no value to trust.
            too_high = not too_long and taken <= self.climb_steps
            turned = {
                "climbing": 0.0,
                "resume_step": float(wait),
                "turned_at": 0.0 if too_long or too_high else base,
                "too_high": float(too_high),
            }
            return {**state, **turned}, base * self.back_off
        # NaN, from gradients of zero, is no reason to stop either.
        stride = self.leap_stride if hardly_moved else self.climb_stride
        return state, base * math.exp(stride)

    def starts_over(self, state: dict[str, float]) -> bool:
        """Where the climb turned at its first look: it began too high."""
        return state["too_high"] > 0.0

    def roll_back(
        self, state: dict[str, float], base: float, *, lower: float, step: int
    ) -> tuple[dict[str, float], float]:
        """Climb again from far below if the start was too high; else go on, lower, unprejudiced.

        A climb that went too far has found where: its end is taken for the turn.
        """
        if not state["climbing"] and state["turned_at"] == 0.0:
            return {**self.init(), "climbs_since": float(step)}, base * _ANEW
        has_climbed = base > self.start_value * math.exp(0.5 * self.climb_stride)
        if state["climbing"] and not has_climbed:
            return {**self.init(), "climbs_since": float(step)}, base * _ANEW
        turned_at = base * lower if state["climbing"] else min(state["turned_at"], base)
        found = {"climbing": 0.0, "resume_step": float(step), "turned_at": turned_at}
        return {**self.init(), **found}, base * lower

    def _balance(
        self, state: dict[str, float], base: float, evidence: Evidence
    ) -> tuple[dict[str, float], float]:
        """Add to the evidence, and act on it as far as it is certain."""
        evidence = self._leaning(state["turned_at"], base, evidence)
        num_told = state["num_told"] + 1.0
        imbalance = state["imbalance"] + evidence.imbalance
        significance = state["significance"] + max(-_MOST, min(_MOST, evidence.significance))
        together = significance / math.sqrt(num_told)
        change = functional.significance_step(
            imbalance / num_told,
            together,
            stride=self.stride / (1.0 + state["quiet_cycles"] / self.patience),
            doubt=self.doubt,
        )
        certain = functional.certainty(together, doubt=self.doubt)
        left = 1.0 - certain
        told = {
            "quiet_cycles": max(0.0, state["quiet_cycles"] + 1.0 - _FORGOTTEN * certain),
            "num_told": left * num_told,
            "imbalance": left * imbalance,
            "significance": left * significance,
        }
        return {**state, **told}, base * math.exp(change)

    def _leaning(self, turned_at: float, base: float, evidence: Evidence) -> Evidence:
        """With a slope that leans towards the turn; as it is where none is known."""
        if evidence.trend is None or not turned_at > 0.0 or not base > 0.0:
            return evidence
        lean = self.trust * math.log(base / turned_at) * evidence.trend.scale
        return evidence._replace(trend=evidence.trend._replace(slope=evidence.trend.slope + lean))

    def next_cycle_steps(self, state: dict[str, float], step: int) -> int:
        """Short while climbing; then until it has settled; then a fraction of the run so far."""
        if state["climbing"]:
            return self.climb_steps
        if step < state["resume_step"]:
            return int(state["resume_step"]) - step
        return max(self.cycle_steps, int(self.cycle_growth * step))
