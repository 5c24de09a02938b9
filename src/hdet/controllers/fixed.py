"""No control: the base values follow the schedule."""

from __future__ import annotations

from hdet.controllers.base import AbstractController, Evidence


class FixedController(AbstractController):
    """Leaves every base value to the schedule; the spread and the averaging still act."""

    @property
    def start_step(self) -> None:
        """Never."""
        return

    def init(self) -> dict[str, float]:
        """No state."""
        return {}

    def update(
        self, state: dict[str, float], base: float, evidence: Evidence
    ) -> tuple[dict[str, float], float]:
        """The same again."""
        del evidence
        return state, base
