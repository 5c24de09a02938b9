"""Controllers around controllers: they hold back what the one inside decides."""

from __future__ import annotations

from hdet import checks
from hdet.controllers.base import AbstractController, Evidence


class AbstractWrapper(AbstractController):
    """Passes everything on to ``controller``; a subclass changes `update`."""

    def __init__(self, controller: AbstractController) -> None:
        self.controller: AbstractController = checks.instance(
            "controller", controller, AbstractController, remedy="pass one of hdet's controllers"
        )

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} around {self.controller!r})"

    @property
    def start_step(self) -> int | None:
        """As inside."""
        return self.controller.start_step

    @property
    def start_value(self) -> float | None:
        """As inside."""
        return self.controller.start_value

    @property
    def needs_trend(self) -> bool:
        """As inside."""
        return self.controller.needs_trend

    def init(self) -> dict[str, float]:
        """As inside."""
        return self.controller.init()

    def roll_back(
        self, state: dict[str, float], base: float, *, lower: float, step: int
    ) -> tuple[dict[str, float], float]:
        """Its own, and the wrapper afresh."""
        own, moved = self.controller.roll_back(state, base, lower=lower, step=step)
        return {**self.init(), **own}, moved

    def starts_over(self, state: dict[str, float]) -> bool:
        """If it does."""
        return self.controller.starts_over(state)

    def next_cycle_steps(self, state: dict[str, float], step: int) -> int | None:
        """As inside."""
        return self.controller.next_cycle_steps(state, step)


class Bounded(AbstractWrapper):
    """Keeps the value in ``[low, high]``.

    For a relative controller (`LongHorizonController`) that is the factor on the schedule; the
    bounds of a hyperparameter itself hold for every controller.

    Args:
        controller: what decides.
        low: smallest value.
        high: largest value, above ``low``.
    """

    def __init__(self, controller: AbstractController, low: float, high: float) -> None:
        super().__init__(controller)
        self.low = checks.real("low", low, remedy="pass a number, 0.0 for none")
        self.high = checks.real(
            "high", high, low=self.low, low_open=True, remedy="it lies above low"
        )

    def update(
        self, state: dict[str, float], base: float, evidence: Evidence
    ) -> tuple[dict[str, float], float]:
        """The decision, cut at the bounds."""
        state, moved = self.controller.update(state, base, evidence)
        return state, min(max(moved, self.low), self.high)


class Gated(AbstractWrapper):
    """Lets a decision pass only if the evidence for a direction is significant.

    Args:
        controller: what decides.
        min_significance: the least abs(slope) / standard error, at least 0.
    """

    def __init__(self, controller: AbstractController, min_significance: float = 2.0) -> None:
        super().__init__(controller)
        self.min_significance = checks.real(
            "min_significance", min_significance, low=0.0, remedy="the default is 2.0"
        )

    def update(
        self, state: dict[str, float], base: float, evidence: Evidence
    ) -> tuple[dict[str, float], float]:
        """The new state in any case, the new value only if the gate is open."""
        state, moved = self.controller.update(state, base, evidence)
        is_open = abs(evidence.significance) >= self.min_significance
        return state, moved if is_open else base


class CoolDown(AbstractWrapper):
    """Waits some cycles after each move, so that the next decision sees what the last one did.

    Args:
        controller: what decides.
        num_cycles: cycles without a move after one, at least 1.
    """

    def __init__(self, controller: AbstractController, num_cycles: int = 1) -> None:
        super().__init__(controller)
        self.num_cycles = checks.integer(
            "num_cycles", num_cycles, minimum=1, remedy="the default is 1"
        )

    def init(self) -> dict[str, float]:
        """Nothing to wait for."""
        return {**super().init(), "cooling": 0.0}

    def update(
        self, state: dict[str, float], base: float, evidence: Evidence
    ) -> tuple[dict[str, float], float]:
        """Hold while cooling; the controller inside sees no evidence of those cycles."""
        if state["cooling"] > 0.0:
            return {**state, "cooling": state["cooling"] - 1.0}, base
        inner, moved = self.controller.update(state, base, evidence)
        cooling = float(self.num_cycles) if moved != base else 0.0
        return {**inner, "cooling": cooling}, moved
