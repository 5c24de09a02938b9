"""Closed-form schedules: the value at a step as a factor of its peak (or of its initial value).

`hdet.Ensemble` takes any ``step -> factor`` callable as its schedule, for example
``functools.partial(hdet.functional.cosine, total_steps=10_000)``. Step counts start at 0, the
index of the first optimiser step. At and after ``total_steps`` a schedule stays at its end value.
"""

from __future__ import annotations

import math

from hdet import checks

_COUNT = "count optimiser steps from 0"
_TOTAL = "pass the number of optimiser steps of the run"
_FINAL = "0 ends at zero"
_DIV = "PyTorch's default is 25"
_FINAL_DIV = "PyTorch's default is 1e4"


def cosine(
    step: int, total_steps: int, *, warmup_steps: int = 0, final_ratio: float = 0.0
) -> float:
    r"""Linear warmup, then $f + (1-f)(1 + \cos \pi x)/2$, x the fraction of the rest done.

    >>> [round(cosine(step, 4), 3) for step in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    warmup, done = _warmup_and_rest(step, total_steps, warmup_steps)
    final_ratio = checks.real("final_ratio", final_ratio, low=0.0, remedy=_FINAL)
    if warmup < 1.0:
        return warmup
    return final_ratio + (1.0 - final_ratio) * 0.5 * (1.0 + math.cos(math.pi * done))


def linear(
    step: int, total_steps: int, *, warmup_steps: int = 0, final_ratio: float = 0.0
) -> float:
    r"""Linear warmup, then $1 - (1-f) x$, x the fraction of the rest done.

    >>> [linear(step, 4) for step in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    warmup, done = _warmup_and_rest(step, total_steps, warmup_steps)
    final_ratio = checks.real("final_ratio", final_ratio, low=0.0, remedy=_FINAL)
    return warmup if warmup < 1.0 else 1.0 - (1.0 - final_ratio) * done


def hold_then_anneal(
    step: int,
    total_steps: int,
    *,
    anneal: float = 0.4,
    warmup_steps: int = 0,
    final_ratio: float = 0.0,
) -> float:
    """Linear warmup, hold at 1, then linear to ``final_ratio`` over the last ``anneal`` part.

    >>> [hold_then_anneal(step, 4, anneal=0.5) for step in range(5)]
    [1.0, 1.0, 1.0, 0.5, 0.0]
    """
    warmup, _ = _warmup_and_rest(step, total_steps, warmup_steps)
    anneal = checks.real("anneal", anneal, low=0.0, high=1.0, remedy="the default is 0.4")
    final_ratio = checks.real("final_ratio", final_ratio, low=0.0, remedy=_FINAL)
    anneal_steps = anneal * total_steps
    left = max(total_steps - step, 0)
    if left >= anneal_steps:
        return warmup
    return min(warmup, final_ratio + (1.0 - final_ratio) * left / anneal_steps)


def one_cycle(
    step: int,
    total_steps: int,
    *,
    pct_start: float = 0.3,
    anneal_strategy: str = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> float:
    """PyTorch's OneCycleLR as a factor of max_lr, to rounding: up, (back down,) then to the floor.

    >>> round(one_cycle(0, 100) * 25, 12), round(one_cycle(29, 100), 12)
    (1.0, 1.0)
    """
    checks.integer("step", step, minimum=0, remedy=_COUNT)
    checks.integer("total_steps", total_steps, minimum=1, remedy=_TOTAL)
    checks.real("pct_start", pct_start, low=0.0, high=1.0, remedy="PyTorch's default is 0.3")
    checks.one_of("anneal_strategy", anneal_strategy, ("cos", "linear"))
    checks.boolean("three_phase", three_phase)
    low = 1.0 / checks.real("div_factor", div_factor, low=0.0, low_open=True, remedy=_DIV)
    floor = low / checks.real(
        "final_div_factor", final_div_factor, low=0.0, low_open=True, remedy=_FINAL_DIV
    )
    last_step = total_steps - 1
    if three_phase:
        ends = [pct_start * total_steps - 1, 2 * pct_start * total_steps - 2, last_step]
        levels = [low, 1.0, low, floor]
    else:
        ends = [pct_start * total_steps - 1, last_step]
        levels = [low, 1.0, floor]
    start = 0.0
    for phase, end in enumerate(ends[:-1]):
        if step <= end:
            return _anneal(levels[phase], levels[phase + 1], start, end, step, anneal_strategy)
        start = end
    return _anneal(levels[-2], levels[-1], start, last_step, min(step, last_step), anneal_strategy)


def _anneal(
    start_value: float, end_value: float, start: float, end: float, step: float, strategy: str
) -> float:
    done = (step - start) / (end - start) if end > start else 1.0
    if strategy == "linear":
        return start_value + (end_value - start_value) * done
    return end_value + (start_value - end_value) / 2.0 * (1.0 + math.cos(math.pi * done))


def _warmup_and_rest(step: int, total_steps: int, warmup_steps: int) -> tuple[float, float]:
    """The warmup factor, 1 once it is over, and the fraction done of the steps after it."""
    step = checks.integer("step", step, minimum=0, remedy=_COUNT)
    total_steps = checks.integer("total_steps", total_steps, minimum=1, remedy=_TOTAL)
    warmup_steps = checks.integer("warmup_steps", warmup_steps, minimum=0, remedy="0 is no warmup")
    # The first step already learns: a factor of 0 would waste it.
    warmup = min((step + 1) / (warmup_steps + 1), 1.0)
    rest = max(total_steps - warmup_steps, 1)
    return warmup, min(max(step - warmup_steps, 0) / rest, 1.0)
