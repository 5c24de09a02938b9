r"""The first-order signal: the gradient's inner product with where the parameters came from.

$s = \langle g, \bar\theta_{recent} - \bar\theta_{older} \rangle
+ c \, \langle g, \theta - \bar\theta_{recent} \rangle$

Scaling a rate scales the path that it makes the parameters take, so $\langle g, \theta -
\theta_{past} \rangle$ is the derivative of the loss by the log of the rate over that past. Taken
over one cycle it is dominated by noise, which a lower rate always damps: the short-horizon bias.
Its two parts tell noise from progress. The first is the slope along the *averaged* path, from
which the noise is gone; it is negative while going on is worth it. The second is twice what the
noise around the average costs; an anneal wins nearly all of that back, so only a small part of
it, ``noise_price``, is charged. The rate at which both parts cancel is one that spends its noise
well (``docs/method.md`` has the measurements).

The gradients are those that the optimiser sees, in its own pre-step hook: unscaled, clipped,
whether or not the user has a loss at hand. No extra forward pass, no wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hdet import checks, tensors
from hdet.checks import SAVED
from hdet.errors import InvalidValueError, warn
from hdet.ownership import WeakMethod
from hdet.signals.base import AbstractSignal, Trend
from hdet.signals.closures import evaluate_first
from hdet.signals.trail import Trail
from hdet.signals.training_loss import TrainingLoss

_FIELDS = 5
"""What a sample holds for each group: <g, recent - older>, <g, theta - recent>, and the
squared norms of g, theta - older and theta."""
_COLUMNS = 5
"""What a row says of each group: slope, scale, the variance of the mean slope, alignment, moved."""


class GradientProduct(AbstractSignal):
    """Samples the slope of the loss by the log of the rate, from gradients that are there anyway.

    Holds two copies of the parameters, in float32 where theirs is narrower.

    Args:
        noise_price: c, the part of the noise's cost that an anneal does not win back, in [0, 1].
        recent_window: how far the recent average reaches back, as a fraction of rate-time, in
            (0, 1].
        older_window: likewise the older average; above ``recent_window``.
        num_samples: gradients looked at in a cycle, at least 2; in a cycle of twice as many steps
            or more, steps are skipped evenly, so that the cost falls with the length of a run.
        per_group: a slope for each parameter group rather than one for all of them.
        reference_device: where the copies live; None is the parameters' own device.
    """

    def __init__(
        self,
        *,
        noise_price: float = 0.2,
        recent_window: float = 0.3,
        older_window: float = 1.5,
        num_samples: int = 16,
        per_group: bool = False,
        reference_device: torch.device | str | None = None,
    ) -> None:
        self.noise_price = checks.real(
            "noise_price", noise_price, low=0.0, high=1.0, remedy="the default is 0.2"
        )
        self.recent_window = checks.real(
            "recent_window",
            recent_window,
            low=0.0,
            high=1.0,
            low_open=True,
            remedy="the default is 0.3",
        )
        self.older_window = checks.real(
            "older_window",
            older_window,
            low=self.recent_window,
            low_open=True,
            remedy="it reaches back further than recent_window; the default is 1.5",
        )
        self.num_samples = checks.integer(
            "num_samples", num_samples, minimum=2, remedy="the default is 16"
        )
        self.per_group = checks.boolean("per_group", per_group)
        self._reference_device = checks.optional_device("reference_device", reference_device)
        self._loss = TrainingLoss()
        self._optimizer: torch.optim.Optimizer | None = None
        self._trails: list[Trail] = []
        self._rate: Callable[[int], float] = _no_rate
        self._samples: list[torch.Tensor] = []
        self._num_steps = self._seen = self._depth = 0
        self._warned = False

    @property
    def needs_loss(self) -> bool:
        """Gradients say it all; a loss that is handed over is reported beside them."""
        return False

    @property
    def has_trends(self) -> bool:
        """One for each group, or the same for all of them."""
        return True

    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[int],
        rate: Callable[[int], float],
        num_processes: int = 1,
    ) -> None:
        """Follow the optimiser's steps."""
        del num_processes
        self._optimizer, self._rate = optimizer, rate
        self._trails = [
            Trail(
                optimizer.param_groups[group]["params"],
                recent_window=self.recent_window,
                older_window=self.older_window,
                device=self._reference_device,
            )
            for group in groups
        ]
        self._register_hooks(optimizer)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._optimizer is not None:  # a pickled optimiser comes back without its hooks
            self._register_hooks(self._optimizer)

    def observe(self, losses_L: torch.Tensor) -> None:
        """Keep the mean for the record."""
        self._loss.observe(losses_L)

    def measure(self, num_local: int, device: torch.device) -> torch.Tensor:
        """The mean loss of each local replica, where losses were handed over."""
        return self._loss.measure(num_local, device)

    def statistics(self) -> torch.Tensor:
        """`num_columns` of each group, or of all of them together."""
        return self._statistics().flatten()

    @property
    def num_columns(self) -> int:
        """How many numbers a group has in a row of `statistics`."""
        return _COLUMNS

    def trends(self, rows_RK: Sequence[Sequence[float]], *, independent: bool) -> list[Trend]:
        """Means over replicas. Shared gradients are one sample, however many replicas saw it."""
        self._warn_of_missing_updates()
        if not rows_RK:
            return []
        num_groups = len(self._trails) if self.per_group else 1
        table = torch.tensor(rows_RK, dtype=torch.float64)[:, : num_groups * _COLUMNS]
        mean_GK = table.reshape(len(rows_RK), num_groups, _COLUMNS).mean(dim=0).tolist()
        count = len(rows_RK) if independent else 1
        found = [
            Trend(slope, math.sqrt(variance / count), scale, alignment, moved)
            for slope, scale, variance, alignment, moved in mean_GK
        ]
        return found if self.per_group else found * len(self._trails)

    def reset(self, num_steps: int) -> None:
        """Spread the next cycle's samples evenly."""
        self._loss.reset(num_steps)
        self._samples = []
        self._num_steps, self._seen, self._depth = num_steps, 0, 0

    def forget(self) -> None:
        """Both averages begin at the present point."""
        for trail in self._trails:
            trail.forget()

    def state_dict(self) -> dict[str, Any]:
        """The averages, and what the cycle has sampled so far."""
        return {
            "trails": [trail.state_dict() for trail in self._trails],
            "samples": list(self._samples),
            "num_steps": self._num_steps,
            "seen": self._seen,
        }

    def check_state(self, state: Any) -> None:
        """Raise if it is not of as many averages, of the same shapes."""
        checks.instance("state['signal']", state, dict, remedy=checks.SAVED)
        if not state:
            return
        saved = state.get("trails")
        if not isinstance(saved, list) or len(saved) != len(self._trails):
            raise InvalidValueError(
                f"state['signal'] must hold the averages of {len(self._trails)} parameter groups, "
                f"got keys {sorted(state)}; build the optimizer as it was when the state was saved"
            )
        for trail, own in zip(self._trails, saved, strict=True):
            trail.check_state(own)
        checks.instance("state['signal']['samples']", state.get("samples"), list, remedy=SAVED)
        for key in ("num_steps", "seen"):
            checks.integer(f"state['signal'][{key!r}]", state.get(key), minimum=0, remedy=SAVED)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; a state without averages leaves them where they stand."""
        if not state:
            return
        for trail, saved in zip(self._trails, state["trails"], strict=True):
            trail.load_state_dict(saved)
        self._samples = [sample.to(self._trails[0].device) for sample in state["samples"]]
        self._num_steps, self._seen = int(state["num_steps"]), int(state["seen"])

    def local_state_dict(self) -> dict[str, Any]:
        """The losses and the samples, which replicas that explore take of their own gradients."""
        return {"loss": self._loss.local_state_dict(), "samples": list(self._samples)}

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        """Restore."""
        self._loss.load_local_state_dict(state["loss"])
        self._samples = [sample.to(self._trails[0].device) for sample in state["samples"]]

    def memory(self) -> list[torch.Tensor]:
        """Both averages of all groups, while they are followed."""
        if self._num_steps == 0:
            return []
        return [average for trail in self._trails for average in trail.averages()]

    def _warn_of_missing_updates(self) -> None:
        """At the end of a cycle: a GradScaler may skip some updates, but not half of them."""
        if not self._warned and 0 < self._num_steps >= 2 * self._seen:
            self._warned = True
            warn(
                f"scheduler.step() was called {self._num_steps} times for {self._seen} calls of "
                "optimizer.step(): the rate is steered by updates that did not happen; call both "
                "once for each update, also where gradients are accumulated"
            )

    # ------------------------------------------------------------------ sampling

    def _register_hooks(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_pre_hook(evaluate_first)
        optimizer.register_step_pre_hook(WeakMethod(self._before_step))
        optimizer.register_step_post_hook(WeakMethod(self._after_step))

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._depth += 1
        if self._num_steps == 0 or self._depth > 1:  # a subclass whose step() calls its parent's
            return
        rates = [self._rate(position) for position in range(len(self._trails))]
        self._seen += 1
        if any(map(math.isnan, rates)):  # not ours, and so the path is not either
            return
        if (self._seen - 1) % max(self._num_steps // self.num_samples, 1) == 0:
            with torch.no_grad():
                sample = torch.stack([_sample(trail) for trail in self._trails])
                self._samples.append(_unscaled(sample, getattr(optimizer, "grad_scale", None)))
        for rate, trail in zip(rates, self._trails, strict=True):
            trail.spend(rate)

    def _after_step(self, *_: Any) -> None:
        self._depth = max(self._depth - 1, 0)

    def _statistics(self) -> torch.Tensor:
        """``[G, 5]``, see `_COLUMNS`; NaN where the cycle was too short for a standard error."""
        num_groups = len(self._trails) if self.per_group else 1
        if len(self._samples) < 2:
            return torch.full((num_groups, _COLUMNS), float("nan"))
        samples_NGF = torch.stack(self._samples)
        if not self.per_group:
            samples_NGF = samples_NGF.sum(dim=1, keepdim=True)
        progress, noise, g_2, d_2, x_2 = samples_NGF.unbind(dim=2)
        # A gradient that has overflowed, as one that a GradScaler skips, says nothing.
        sound = torch.isfinite(progress) & torch.isfinite(noise) & torch.isfinite(g_2)
        progress, noise = (part.where(sound, math.nan) for part in (progress, noise))
        slope = progress + self.noise_price * noise
        count = sound.sum(0)
        # NaN where nothing has moved, as before the first step or where a step was below rounding:
        # it says nothing, and 0 would end a climb.
        cosine = (progress + noise) / (g_2 * d_2).sqrt()
        return torch.stack(
            [
                slope.nanmean(0),
                progress.nanmean(0).abs() + self.noise_price * noise.nanmean(0).abs(),
                (slope - slope.nanmean(0)).square().nansum(0) / (count * (count - 1)),
                cosine.nanmean(0),
                (d_2[-1] / x_2[-1]).sqrt(),
            ],
            dim=1,
        )


def _unscaled(sample_GF: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Of the gradient itself, where a GradScaler leaves it to a fused step to unscale it."""
    if scale is None:
        return sample_GF
    one = torch.ones_like(scale)
    return sample_GF / torch.stack([scale, scale, scale**2, one, one]).reshape(_FIELDS)


def _no_rate(position: int) -> float:
    return 0.0


def _sample(trail: Trail) -> torch.Tensor:
    """The `_FIELDS` of a group; parameters without a gradient do not count."""
    trail.extend()
    parts = []
    for members in trail.chunks:
        gradients = [param.grad for param in trail.params[members]]
        kept = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if kept:
            vectors = ([own[i] for i in kept] for own in trail.at(members))
            dense = [tensors.dense("a gradient", g) for g in gradients if g is not None]
            parts.append(_products(dense, *vectors))
    if not parts:
        return torch.zeros(_FIELDS, device=trail.device, dtype=tensors.widest(trail.device))
    return torch.stack(parts).sum(dim=0)


def _products(
    gradients: list[torch.Tensor],
    present: list[torch.Tensor],
    recent: list[torch.Tensor],
    older: list[torch.Tensor],
) -> torch.Tensor:
    """The `_FIELDS` of some parameters.

    As one vector: what this costs is the number of operations, not the few megabytes they move.
    """
    x, middle, start = (_flat(own) for own in (present, recent, older))
    g = _flat(gradients).to(x.dtype)
    path, noise, down = middle - start, x - middle, x - start
    fields = [g.dot(path), g.dot(noise), g.dot(g), down.dot(down), x.dot(x)]
    return torch.stack(fields).to(tensors.widest(x.device))


def _flat(members: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([member.reshape(-1) for member in members])
