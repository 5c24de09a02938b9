"""Which replica holds which multiplier in the current cycle (Eqs. 1 and 9)."""

from __future__ import annotations

from collections.abc import Sequence

from hdet import functional
from hdet.hyperparameters import AbstractHyperparameter


class Assignment:
    """Multipliers ``[H][R]``, drawn anew for each cycle, the same on every replica.

    The first cycle has Eq. 1 as it stands, replica r at rho_r. Eq. 9 speaks of "after each
    converge".
    """

    def __init__(
        self, hyperparameters: Sequence[AbstractHyperparameter], num_replicas: int, seed: int
    ) -> None:
        self._hyperparameters = hyperparameters
        self._num_replicas = num_replicas
        self._seed = seed
        self._multipliers_HR: list[list[float]] = []
        self.draw(cycle=0)

    def draw(self, cycle: int) -> None:
        """Assign the multipliers of a cycle; any cycle, in any order."""
        self._multipliers_HR = []
        for index, hyperparameter in enumerate(self._hyperparameters):
            rho_R = functional.spread_multipliers(self._num_replicas, hyperparameter.spread_ratio)
            if cycle > 0:
                order_R = functional.permutation(self._seed, cycle, index, self._num_replicas)
                rho_R = rho_R[order_R]
            self._multipliers_HR.append(rho_R.tolist())

    def multipliers(self, replica: int | None) -> list[float]:
        """Each hyperparameter's multiplier on a replica; 1 everywhere for None, the base point."""
        if replica is None:
            return [1.0] * len(self._multipliers_HR)
        return [own_R[replica] for own_R in self._multipliers_HR]

    def rate_multiplier(self, replica: int, group: int) -> float:
        """The multiplier of a parameter group's learning rate; 1 where it is not explored."""
        for hyperparameter, own_R in zip(self._hyperparameters, self._multipliers_HR, strict=True):
            if hyperparameter.rate_group == group:
                return own_R[replica]
        return 1.0
