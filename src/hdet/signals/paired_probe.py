r"""The antithetic paired probe: the slope of `GradientProduct`, by differences of a probe's loss.

$d_i = \frac{L_i(\theta + \delta u) - L_i(\theta - \delta u)}{2 \delta}$,

$u = (\bar\theta_{recent} - \bar\theta_{older}) + c\,(\theta - \bar\theta_{recent})$

Both members of a pair are evaluated on the same batch with the same random numbers, so what the
batch adds cancels; what is even in delta cancels too. The differences are independent samples of
one slope, and their spread gives its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hdet import checks, tensors
from hdet.signals.base import Trend
from hdet.signals.gradient_product import GradientProduct
from hdet.signals.probe import Probe, same_versions, undisturbed
from hdet.signals.trail import Trail


class PairedProbe(GradientProduct):
    """Judges by the loss on a probe's batches: two forward passes a pair.

    The pairs are spread over the steps of a cycle. All of them at one point would share that
    point's noise, which their standard error could not see: taken at the end of a cycle, eight
    pairs agreed on wrong directions, and runs diverged.

    Short cycles, those of a climb, are judged by the gradients alone. While a pair is evaluated, a
    third copy of the parameters is held.

    Args:
        probe: the loss and its batches.
        num_pairs: pairs a cycle over all replicas, at least 2.
        displacement: delta, how far the members stand off, relative to the path; in (0, 1).
        min_steps: the shortest cycle that is probed.
        **settings: those of `GradientProduct`.
    """

    def __init__(
        self,
        probe: Probe,
        *,
        num_pairs: int = 8,
        displacement: float = 0.05,
        min_steps: int = 10,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._probe: Probe = checks.instance(
            "probe", probe, Probe, remedy="pass hdet.Probe(loss, batches)"
        )
        self.num_pairs = checks.integer("num_pairs", num_pairs, minimum=2, remedy="it is 8 if left")
        self.displacement = checks.real(
            "displacement",
            displacement,
            low=0.0,
            high=1.0,
            low_open=True,
            high_open=True,
            remedy="the default is 0.05",
        )
        self.min_steps = checks.integer(
            "min_steps", min_steps, minimum=1, remedy="it is 10 if left"
        )
        self._num_own = self.num_pairs
        self._pairs: list[torch.Tensor] = []

    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[int],
        rate: Callable[[int], float],
        num_processes: int = 1,
    ) -> None:
        """Follow the optimiser's steps; each process evaluates its share of the pairs."""
        super().attach(optimizer, groups, rate, num_processes)
        self._num_own = math.ceil(self.num_pairs / num_processes)

    def statistics(self) -> torch.Tensor:
        """Those of the gradients, then this process's differences; NaN for those not evaluated."""
        own = super().statistics()
        found_GP = own.new_full((len(self._scopes()), self._num_own), math.nan)
        if self._pairs:
            found_GP[:, : len(self._pairs)] = torch.stack(self._pairs, dim=1)
        return torch.cat([own, found_GP.flatten()])

    def trends(self, rows_RK: Sequence[Sequence[float]], *, independent: bool) -> list[Trend]:
        """The gradients' trends, with the probe's slope where there is one."""
        num_groups = len(self._trails)
        found = super().trends(rows_RK, independent=independent)
        if not found:
            return found
        scopes = num_groups if self.per_group else 1
        extra = torch.tensor(rows_RK, dtype=torch.float64)[:, scopes * self.num_columns :]
        samples_GP = extra.reshape(len(rows_RK), scopes, -1).transpose(0, 1).reshape(scopes, -1)
        if samples_GP.isnan().any():  # a short cycle, or steps that were skipped
            return found
        probed = [_with_samples(trend, own) for trend, own in zip(found, samples_GP, strict=False)]
        return probed if self.per_group else probed * num_groups

    def reset(self, num_steps: int) -> None:
        """Spread the next cycle's pairs evenly."""
        super().reset(num_steps)
        self._pairs = []

    def state_dict(self) -> dict[str, Any]:
        """That of the gradients' signal, the cycle's differences, and where the batches stand."""
        own = {"pairs": list(self._pairs), "num_drawn": self._probe.num_drawn}
        return {**super().state_dict(), **own}

    def check_state(self, state: Any) -> None:
        """Raise if it is not one of `GradientProduct`, or of no number of batches."""
        super().check_state(state)
        if "num_drawn" in state:
            checks.integer(
                "state['signal']['num_drawn']", state["num_drawn"], minimum=0, remedy=checks.SAVED
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; the batches go on where they stood, if the state is of a probe."""
        super().load_state_dict(state)
        if "pairs" in state:
            self._pairs = [pair.to(self._trails[0].device) for pair in state["pairs"]]
        if "num_drawn" in state:
            self._probe.seek(int(state["num_drawn"]))

    def local_state_dict(self) -> dict[str, Any]:
        """That of the gradients' signal, and this process's differences."""
        return {**super().local_state_dict(), "pairs": list(self._pairs)}

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        """Restore."""
        super().load_local_state_dict(state)
        self._pairs = [pair.to(self._trails[0].device) for pair in state["pairs"]]

    def _scopes(self) -> list[list[Trail]]:
        """The groups that are displaced together."""
        return [[trail] for trail in self._trails] if self.per_group else [self._trails]

    def _before_step(self, *arguments: Any) -> None:
        super()._before_step(*arguments)
        if self._num_steps < self.min_steps:
            return
        due = min(self._seen * self._num_own // self._num_steps, self._num_own)
        while len(self._pairs) < due:
            self._pairs.append(torch.stack([self._difference(own) for own in self._scopes()]))

    def _difference(self, trails: Sequence[Trail]) -> torch.Tensor:
        device, dtype = trails[0].device, tensors.widest(trails[0].device)
        params = [param for trail in trails for param in trail.params]
        with torch.no_grad(), undisturbed(device) as calm, same_versions(params):
            held = [trail.hold() for trail in trails]
            try:
                batch = self._probe.draw()
                calm.begin_pair()
                losses = []
                for sign in (1.0, -1.0):
                    calm.begin_member()
                    for trail, own in zip(trails, held, strict=True):
                        trail.displace(own, sign * self.displacement, self.noise_price)
                    losses.append(self._probe.evaluate(batch).to(device, dtype))
            finally:
                for trail, own in zip(trails, held, strict=True):
                    trail.restore(own)
        return (losses[0] - losses[1]) / (2.0 * self.displacement)


def _with_samples(trend: Trend, samples: torch.Tensor) -> Trend:
    return trend._replace(
        slope=float(samples.mean()),
        stderr=float(samples.std()) / math.sqrt(len(samples)),
        scale=float(samples.abs().mean()),
        samples=tuple(samples.tolist()),
    )
