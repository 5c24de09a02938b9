"""`GradientProduct` once more in plain Python floats, and a controller that writes down trends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import hdet


class Moment(NamedTuple):
    """What stood there before an optimiser step, by parameter group."""

    points: list[list[float]]
    gradients: list[list[float] | None]
    rates: list[float]


class Recorder(hdet.AbstractController):
    """Keeps every base value where it is, and the evidence of each hyperparameter."""

    def __init__(self, cycle_steps: int | None = None) -> None:
        self.cycle_steps = cycle_steps
        self.seen: list[hdet.Evidence] = []

    @property
    def start_step(self) -> int:
        return 0

    @property
    def needs_trend(self) -> bool:
        return True

    def init(self) -> dict[str, float]:
        return {}

    def update(
        self, state: dict[str, float], base: float, evidence: hdet.Evidence
    ) -> tuple[dict[str, float], float]:
        self.seen.append(evidence)
        return state, base

    def next_cycle_steps(self, state: dict[str, float], step: int) -> int | None:
        return self.cycle_steps

    def trends(self, num_groups: int) -> list[list[hdet.Trend]]:
        """By cycle, then by group."""
        found = [own.trend for own in self.seen]
        assert all(own is not None for own in found)
        whole = [own for own in found if own is not None]
        return [whole[i : i + num_groups] for i in range(0, len(whole), num_groups)]


def dot(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))


class LiteralTrail:
    """One group's averages, from `signals/trail.py`'s docstring."""

    def __init__(self, point: list[float]) -> None:
        self.recent, self.older = list(point), list(point)
        self.tau = self.pending = 0.0

    def extend(self, point: list[float]) -> None:
        if self.pending == 0.0:
            return
        is_first = self.tau == 0.0
        self.tau += self.pending
        share = self.pending / self.tau
        self.pending = 0.0
        for i, value in enumerate(point):
            self.recent[i] += min(1.0, share / 0.3) * (value - self.recent[i])
            weight = 0.5 if is_first else min(1.0, share / 1.5)
            self.older[i] += weight * (value - self.older[i])


def literal_trends(
    history: list[Moment],
    *,
    cycle_steps: int,
    num_samples: int,
    per_group: bool,
    noise_price: float = 0.2,
) -> list[list[tuple[float, ...]]]:
    """(slope, stderr, scale, alignment, moved) by cycle, then by group (or once, pooled)."""
    groups = range(len(history[0].points))
    trails = [LiteralTrail(history[0].points[g]) for g in groups]
    stride = max(cycle_steps // num_samples, 1)
    cycles = []
    for start in range(0, len(history) - cycle_steps + 1, cycle_steps):
        samples: list[list[tuple[float, ...]]] = []
        for offset, moment in enumerate(history[start : start + cycle_steps]):
            if offset % stride == 0:
                samples.append([_sample(trails[g], moment, g) for g in groups])
            for g in groups:
                trails[g].pending += moment.rates[g]
        if per_group:
            cycles.append([_trend([own[g] for own in samples], noise_price) for g in groups])
        else:
            pooled = [tuple(map(sum, zip(*own, strict=True))) for own in samples]
            cycles.append([_trend(pooled, noise_price)])
    return cycles


def _sample(trail: LiteralTrail, moment: Moment, group: int) -> tuple[float, ...]:
    point, gradient = moment.points[group], moment.gradients[group]
    trail.extend(point)
    if gradient is None:
        return (0.0,) * 5
    path = [r - o for r, o in zip(trail.recent, trail.older, strict=True)]
    noise = [x - r for x, r in zip(point, trail.recent, strict=True)]
    whole = [x - o for x, o in zip(point, trail.older, strict=True)]
    return (
        dot(gradient, path),
        dot(gradient, noise),
        dot(gradient, gradient),
        dot(whole, whole),
        dot(point, point),
    )


def _trend(samples: list[Any], noise_price: float) -> tuple[float, ...]:
    slopes = [p + noise_price * n for p, n, *_ in samples]
    progress = statistics.fmean(p for p, *_ in samples)
    noise = statistics.fmean(n for _, n, *_ in samples)
    cosines = [(p + n) / math.sqrt(g * d) for p, n, g, d, _ in samples if g * d > 0.0]
    return (
        statistics.fmean(slopes),
        statistics.stdev(slopes) / math.sqrt(len(slopes)),
        abs(progress) + noise_price * abs(noise),
        statistics.fmean(cosines) if cosines else math.nan,
        math.sqrt(samples[-1][3] / samples[-1][4]) if samples[-1][4] else math.nan,
    )
