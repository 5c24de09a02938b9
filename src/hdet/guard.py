"""When a run goes wrong: back to the last good converged point, at a lower rate.

The converged loss is the mean of a cycle's training losses over the replicas that count. Every
number that a verdict rests on was gathered, so all replicas reach the same one.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hdet import checks, tensors
from hdet.errors import NonFiniteError
from hdet.ownership import WeakMethod
from hdet.replicas import AbstractReplicas
from hdet.roll_call import RollCall
from hdet.signals import Losses
from hdet.signals.losses import read_losses
from hdet.snapshot import Snapshot

logger = logging.getLogger("hdet")

_RECENT = 10
"""Good cycles among which the best is looked for: a loss may rise slowly, as data change."""


class Guard:
    """Returns all replicas to the last good point when the loss rises, and lowers the rates.

    Parameters, optimiser state and, with a model, buffers go back; the step, the schedule and the
    data go on.

    Args:
        factor: a cycle is bad above this multiple of the best recent one, above 1; or where no
            replica has a finite loss or finite parameters.
        patience: bad cycles in a row before going back; what is not finite is not waited for.
        lower: factor on the learning rates at each return, in (0, 1).
        max_roll_backs: how often; the next time is an error.
        min_steps: fewest steps between two points that are kept, for keeping one is a copy.
        device: where the point is kept; None is next to the parameters, "cpu" frees the
            accelerator.
    """

    def __init__(
        self,
        *,
        factor: float = 2.0,
        patience: int = 2,
        lower: float = 0.3,
        max_roll_backs: int = 10,
        min_steps: int = 25,
        device: torch.device | str | None = None,
    ) -> None:
        self.factor = checks.real(
            "factor", factor, low=1.0, low_open=True, remedy="the default is 2.0"
        )
        self.patience = checks.integer("patience", patience, minimum=1, remedy="the default is 2")
        self.lower = checks.real(
            "lower", lower, low=0.0, high=1.0, low_open=True, high_open=True,
            remedy="the default is 0.3",
        )  # fmt: skip
        self.max_roll_backs = checks.integer(
            "max_roll_backs", max_roll_backs, minimum=0, remedy="the default is 10"
        )
        self.min_steps = checks.integer(
            "min_steps", min_steps, minimum=1, remedy="the default is 25"
        )
        self.device = checks.optional_device("device", device)

    def __repr__(self) -> str:
        return checks.describe(self)


class Watch:
    """A guard at work on one run.

    Args:
        guard: what it watches for; None for nothing at all.
        optimizer: whose parameters and state are kept.
        model: whose buffers are; None for none.
        replicas: who takes part.
        in_charge: whether the rates are ours, and not those of a phase before.
    """

    def __init__(
        self,
        guard: Guard | None,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        replicas: AbstractReplicas,
        in_charge: Callable[[], bool],
    ) -> None:
        self.guard = guard
        self._in_charge = in_charge
        self.num_roll_backs = 0
        self._replicas = replicas
        self._recent: list[float] = []
        self._num_bad = self._kept_step = 0
        self._first_L: torch.Tensor | None = None
        if guard is not None:
            self._snapshot = Snapshot(optimizer, model, guard.device)
            self._follow()

    @property
    def is_on(self) -> bool:
        """Whether there is a guard."""
        return self.guard is not None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.guard is not None:  # a pickled optimiser comes back without its hooks
            self._follow()

    @property
    def lower(self) -> float:
        """The factor on the rates at each return."""
        return 1.0 if self.guard is None else self.guard.lower

    @property
    def may_go_back(self) -> bool:
        """Whether there is a guard, and a roll-back left."""
        return self.guard is not None and self.num_roll_backs < self.guard.max_roll_backs

    def note(self, loss: Losses | None) -> None:
        """Remember the loss before the first step: what a bad first cycle is measured against."""
        if self.guard is not None and self._first_L is None and loss is not None:
            self._first_L = read_losses(loss, self._replicas.num_local).clone()

    def is_bad(self, answers: RollCall, step: int) -> bool:
        """Judge a cycle; a good one's end is where the run comes back to."""
        if self.guard is None:
            return False
        loss = _converged_loss(answers)
        if not any(answers.valid) or not math.isfinite(loss or 0.0):
            return True
        if loss is not None:
            if not self._recent:
                self._recent = self._first()
            if self._is_above(loss):
                self._num_bad += 1
                return self._num_bad >= self.guard.patience
            self._recent = [*self._recent, loss][-_RECENT:]
        self._num_bad = 0
        if step - self._kept_step >= self.guard.min_steps:
            self._snapshot.keep()
            self._kept_step = step
        return False

    def roll_back(self, step: int, reason: str) -> None:
        """Put the last good point back, or stop for good."""
        assert self.guard is not None
        if self.num_roll_backs >= self.guard.max_roll_backs:
            raise NonFiniteError(
                f"the run went wrong at step {step} ({reason}) after {self.num_roll_backs} "
                "roll-backs: it is not the rate alone; look at the data and the model, or pass a "
                "guard with more max_roll_backs"
            )
        self.num_roll_backs += 1
        self._num_bad = 0
        self._snapshot.restore()
        self._replicas.reset()
        logger.warning(
            "step %d: %s; all replicas go back to where they were at step %d, at lower rates "
            "(roll-back %d of at most %d)",
            step,
            reason,
            self._kept_step,
            self.num_roll_backs,
            self.guard.max_roll_backs,
        )

    def reset(self) -> None:
        """The run goes on elsewhere: what comes is the point to return to."""
        if self.guard is not None:
            self._snapshot.forget()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; a checkpoint that is loaded is itself the point to return to."""
        if self.guard is None:
            return {}
        return {
            "num_roll_backs": self.num_roll_backs,
            "num_bad": self._num_bad,
            "kept_step": self._kept_step,
            "recent": list(self._recent),
        }

    def check_state(self, state: Any) -> None:
        """Raise if `load_state_dict` could not restore it."""
        checks.instance("state['guard']", state, dict, remedy=checks.SAVED)
        for key in ("num_roll_backs", "num_bad", "kept_step"):
            checks.integer(
                f"state['guard'][{key!r}]", state.get(key, 0), minimum=0, remedy=checks.SAVED
            )
        recent = checks.instance(
            "state['guard']['recent']", state.get("recent", []), list, remedy=checks.SAVED
        )
        checks.saved_numbers("state['guard']['recent']", recent, length=len(recent))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore; a state from before there was a guard starts it afresh."""
        self.num_roll_backs = int(state.get("num_roll_backs", 0))
        self._num_bad = int(state.get("num_bad", 0))
        self._kept_step = int(state.get("kept_step", 0))
        self._recent = [float(loss) for loss in state.get("recent", [])]

    def _follow(self) -> None:
        optimizer = self._snapshot.optimizer
        handle = optimizer.register_step_pre_hook(WeakMethod(self._before_step))
        weakref.finalize(self, handle.remove)

    def _before_step(self, *_: Any) -> None:
        if self._snapshot.is_empty and self._in_charge():
            self._snapshot.keep()

    def _first(self) -> list[float]:
        """The replicas' mean loss before the first step, where all of them have told one."""
        device = self._snapshot.params[0].device
        own_L = (
            torch.full((self._replicas.num_local,), math.nan)
            if self._first_L is None
            else (self._first_L)
        )
        own_L = own_L.to(device).to(tensors.widest(device))
        mean = float(self._replicas.gather(own_L[:, None]).mean())
        return [mean] if math.isfinite(mean) else []

    def _is_above(self, loss: float) -> bool:
        assert self.guard is not None
        if not self._recent:
            return False
        best = min(self._recent)
        return loss > best + (self.guard.factor - 1.0) * abs(best)


def _converged_loss(answers: RollCall) -> float | None:
    """The mean over the replicas that count; NaN if none of theirs is finite, None without any."""
    if not answers.told:
        return None
    losses: Sequence[float] = [
        loss
        for loss, counts in zip(answers.losses, answers.valid, strict=True)
        if counts and math.isfinite(loss)
    ]
    return math.fsum(losses) / len(losses) if losses else math.nan
