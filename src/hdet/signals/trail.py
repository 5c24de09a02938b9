r"""Two averages of the path that the parameters took: the recent one and the older one.

Both are power-law averages in *rate-time* $\tau = \sum_t \eta_t$, not in steps,

$\bar\theta_w \gets \bar\theta_w + \min(1, \frac{\delta\tau}{w \tau}) (\theta - \bar\theta_w)$,

so that an average of window w lags by the fraction $w / (1 + w)$ of all the rate that was spent.
While the rate climbs by orders of magnitude, nearly all of $\tau$ lies in the last steps, and the
averages follow closely; while it is constant they reach back for a constant fraction of the run.
One rule serves both, nothing has to be restarted in between, and no snapshot is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from hdet import checks, tensors
from hdet.errors import InvalidValueError

_CHUNK = 2**23
"""Elements handled at a time, which bounds the memory of temporaries."""


class Trail:
    """The recent and the older average of a list of parameters: two copies of them.

    Args:
        params: the parameters.
        recent_window: w of the recent average.
        older_window: w of the older one; 1 is the plain mean over rate-time.
        device: where the copies live; None is where the parameters are, "cpu" frees the
            accelerator, and waits for it at each sample.
    """

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        *,
        recent_window: float,
        older_window: float,
        device: torch.device | str | None,
    ) -> None:
        self.params = list(params)
        self.chunks = _chunks(self.params)
        self._windows = (recent_window, older_window)
        self._mass = self._pending = 0.0
        # Small steps of an average vanish in half precision.
        self._recent, self._older = (
            [
                p.to(device=device or p.device, dtype=tensors.accumulation_dtype(p), copy=True)
                for p in self._local(slice(None))
            ]
            for _ in self._windows
        )

    @property
    def device(self) -> torch.device:
        """Where the parameters are; a group may have none."""
        return self.params[0].device if self.params else torch.device("cpu")

    def _local(self, members: slice) -> list[torch.Tensor]:
        return [tensors.dense("a parameter", p) for p in self.params[members]]

    def spend(self, rate: float) -> None:
        """An optimiser step is about to be taken at this rate."""
        self._pending += rate

    def extend(self) -> None:
        """Take the present parameters into both averages."""
        if self._pending == 0.0:
            if self._mass == 0.0:
                self._begin()
            return
        is_first = self._mass == 0.0
        self._mass += self._pending
        part, self._pending = self._pending / self._mass, 0.0
        weights = [min(1.0, part / window) for window in self._windows]
        if is_first:
            weights[1] = 0.5  # all of it would leave no distance between the two
        for members in self.chunks:
            present = self._local(members)
            for averages, weight in zip((self._recent, self._older), weights, strict=True):
                own = averages[members]
                # Waits for the device if the copies live on the host, which read them at once.
                targets = [p.to(a) for p, a in zip(present, own, strict=True)]
                torch._foreach_lerp_(own, targets, weight)

    def forget(self) -> None:
        """Begin anew at the next sample."""
        self._mass = self._pending = 0.0

    def _begin(self) -> None:
        """Both averages start where the first step does: a checkpoint may have come since."""
        present = self._local(slice(None))
        for averages in (self._recent, self._older):
            for average, own in zip(averages, present, strict=True):
                average.copy_(own)

    def at(
        self, members: slice
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Parameters, recent and older averages, in the averages' precision, next to each other."""
        present = self._local(members)
        recent, older = (
            [a.to(self.device, non_blocking=True) for a in averages[members]]
            for averages in (self._recent, self._older)
        )
        return [p.to(a.dtype) for p, a in zip(present, recent, strict=True)], recent, older

    def hold(self) -> list[torch.Tensor]:
        """A copy of the parameters as they stand."""
        return [param.clone() for param in self._local(slice(None))]

    def displace(self, held: Sequence[torch.Tensor], part: float, noise_part: float) -> None:
        """Theta <- held + part * ((recent - older) + noise_part * (held - recent))."""
        for index, (param, own) in enumerate(zip(self._local(slice(None)), held, strict=True)):
            recent, older = (a[index].to(self.device) for a in (self._recent, self._older))
            present = own.to(recent.dtype)
            path = (recent - older).add_(present - recent, alpha=noise_part)
            # `data` hides the write from virtual replicas, which would take it for a new value.
            param.data.copy_(present + part * path)

    def restore(self, held: Sequence[torch.Tensor]) -> None:
        """Put back what `hold` returned, to the last bit."""
        for param, own in zip(self._local(slice(None)), held, strict=True):
            param.data.copy_(own)

    def averages(self) -> list[torch.Tensor]:
        """The tensors of both averages."""
        return [*self._recent, *self._older]

    def state_dict(self) -> dict[str, Any]:
        """Both averages and the rate spent."""
        return {
            "mass": self._mass,
            "pending": self._pending,
            "recent": list(self._recent),
            "older": list(self._older),
        }

    def check_state(self, state: Any) -> None:
        """Raise if it is not of averages of the same shapes."""
        checks.instance("a trail of state['signal']", state, dict, remedy=checks.SAVED)
        for key in ("mass", "pending"):
            checks.real(f"state['signal']: {key}", state.get(key), low=0.0, remedy=checks.SAVED)
        shapes = [tuple(own.shape) for own in self._recent]
        for key in ("recent", "older"):
            found = [tuple(getattr(own, "shape", ())) for own in state.get(key) or ()]
            if found != shapes:
                raise InvalidValueError(
                    f"state['signal']: {key} must have the parameters' shapes {shapes}, got "
                    f"{found}; build the optimizer as it was when the state was saved"
                )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore in place."""
        self._mass, self._pending = float(state["mass"]), float(state["pending"])
        for averages, saved in ((self._recent, state["recent"]), (self._older, state["older"])):
            for average, own in zip(averages, saved, strict=True):
                average.copy_(own)


def _chunks(params: Sequence[torch.Tensor]) -> list[slice]:
    bounds, size = [0], 0
    for index, param in enumerate(params):
        if size > 0 and size + param.numel() > _CHUNK:
            bounds.append(index)
            size = 0
        size += param.numel()
    pairs = itertools.pairwise([*bounds, len(params)])
    return [slice(start, stop) for start, stop in pairs if start < stop]
