r"""The antithetic paired probe: the slope of `GradientProduct`, by differences of a probe's loss.

$d_i = \frac{L_i(\theta + \delta u) - L_i(\theta - \delta u)}{2 \delta}$,

$u = (\bar\theta_{recent} - \bar\theta_{older}) + c\,(\theta - \bar\theta_{recent})$

Both members of a pair are evaluated on the same batch with the same random numbers, so what the
batch adds cancels; what is even in delta cancels too. The differences are independent samples of
one slope, and their spread gives its standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from hdet import checks, tensors
from hdet.signals.base import Trend
from hdet.signals.gradient_product import GradientProduct
from hdet.signals.probe import Probe, undisturbed
from hdet.signals.trail import Trail


class PairedProbe(GradientProduct):
    """Judges by the loss on a probe's batches: two forward passes a pair, at the end of a cycle.

    Short cycles, those of a climb, are judged by the gradients alone. While it evaluates, a third
    copy of the parameters is held.

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

    def statistics(self, num_replicas: int) -> torch.Tensor:
        """Those of the gradients, then this process's differences; NaN if not probed."""
        own = super().statistics(num_replicas)
        num_pairs = math.ceil(self.num_pairs / num_replicas)
        scopes = [[trail] for trail in self._trails] if self.per_group else [self._trails]
        if self._num_steps < self.min_steps:
            empty = own.new_full((len(scopes) * num_pairs,), math.nan)
            return torch.cat([own, empty])
        differences = [self._differences(scope, num_pairs) for scope in scopes]
        return torch.cat([own, *(d.to(own) for d in differences)])

    def trends(self, rows_RK: Sequence[Sequence[float]], *, independent: bool) -> list[Trend]:
        """The gradients' trends, with the probe's slope where there is one."""
        num_groups = len(self._trails)
        found = super().trends(rows_RK, independent=independent)
        if not found:
            return found
        scopes = num_groups if self.per_group else 1
        extra = torch.tensor(rows_RK, dtype=torch.float64)[:, scopes * self.num_columns :]
        samples_GP = extra.reshape(len(rows_RK), scopes, -1).transpose(0, 1).reshape(scopes, -1)
        if not bool(torch.isfinite(samples_GP).all()):
            return found
        probed = [_with_samples(trend, own) for trend, own in zip(found, samples_GP, strict=False)]
        return probed if self.per_group else probed * num_groups

    def _differences(self, trails: Sequence[Trail], num_pairs: int) -> torch.Tensor:
        device, dtype = trails[0].device, tensors.widest(trails[0].device)
        found = []
        with torch.no_grad(), undisturbed(device) as calm:
            held = [trail.hold() for trail in trails]
            try:
                for _ in range(num_pairs):
                    batch = self._probe.draw()
                    calm.begin_pair()
                    losses = []
                    for sign in (1.0, -1.0):
                        calm.begin_member()
                        for trail, own in zip(trails, held, strict=True):
                            trail.displace(own, sign * self.displacement, self.noise_price)
                        losses.append(self._probe.evaluate(batch).to(device, dtype))
                    found.append((losses[0] - losses[1]) / (2.0 * self.displacement))
            finally:
                for trail, own in zip(trails, held, strict=True):
                    trail.restore(own)
        return torch.stack(found)


def _with_samples(trend: Trend, samples: torch.Tensor) -> Trend:
    return trend._replace(
        slope=float(samples.mean()),
        stderr=float(samples.std()) / math.sqrt(len(samples)),
        scale=float(samples.abs().mean()),
        samples=tuple(samples.tolist()),
    )
