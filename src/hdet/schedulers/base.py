"""What our schedulers share: torch's plans the rates, an Ensemble does the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler

from hdet import checks, saved
from hdet.arguments import checked_optimizer, checked_total_steps
from hdet.cycle import Ensemble
from hdet.errors import InvalidValueError, UsageError, warn
from hdet.hyperparameters import LearningRate
from hdet.plan import GivenPlan, Value
from hdet.signals import Losses


class EnsembleScheduler(lr_scheduler.LRScheduler):
    """Steps an ensemble along with torch's scheduler.

    A subclass computes planned rates in `get_lr` and returns `_explored` of them, and calls
    `_start` at the end of its constructor.
    """

    # Kept out of `__dict__`, which torch's `state_dict` saves whole and its tests compare.
    __slots__ = ("_ensemble",)
    _ensemble: Ensemble
    total_steps: Any  # int, or None where the scheduler takes it
    _other_length = "start a new schedule without this state"
    """What else to do for a run of another length than the one that was saved."""

    def _start(
        self, total_steps: int | None, planned: Sequence[Value] | None = None, **settings: Any
    ) -> None:
        """Let an ensemble take over, now that torch's constructor has written its first rates.

        Args:
            total_steps: S, or None.
            planned: the rates that are planned now; None if they are what was written.
            **settings: the ensemble's.
        """
        planned = read_rates(self.optimizer) if planned is None else planned
        self._ensemble = Ensemble(
            self.optimizer,
            total_steps=total_steps,
            schedule=GivenPlan(planned, self),
            **settings,
        )
        self._ensemble.seek(self.last_epoch, planned)
        self._ensemble.note_written()
        self._last_lr = read_rates(self.optimizer)

    def __repr__(self) -> str:
        """Where it stands. Reads no tensor on a device, so that it waits for nothing."""
        known = vars(self)
        facts = {
            "total_steps": known.get("total_steps"),
            "step": known.get("last_epoch"),
            "rates": "[" + ", ".join(_shown(rate) for rate in known.get("_last_lr", ())) + "]",
            **self._further_facts(),
        }
        listed = ", ".join(f"{name}={value}" for name, value in facts.items())
        return f"{type(self).__name__}({listed})"

    def _further_facts(self) -> dict[str, str]:
        return {}

    @property
    def ensemble(self) -> Ensemble:
        """What explores, averages and controls."""
        return self._ensemble

    @property
    def _runs(self) -> bool:
        """Not so while PyTorch's constructor takes the first step."""
        return hasattr(self, "_ensemble")

    def _explored(self, planned: list[Value]) -> list[Value]:
        """This replica's rates around the planned ones."""
        if not self._runs:
            return planned
        if self._ensemble.num_steps != self.last_epoch:
            self._ensemble.seek(self.last_epoch, planned)
        return self._ensemble.local_values(planned)

    def step(  # type: ignore[override]  # the loss comes first, where torch has its old epoch
        self, loss: Losses | None = None, epoch: int | None = None
    ) -> None:
        """Follow one ``optimizer.step()``."""
        self._check_groups()
        if epoch is not None:
            checks.integer("epoch", epoch, minimum=0, remedy="leave it out, as PyTorch advises")
        lives_through = epoch is None and not self._is_initial
        if self._runs and lives_through and self._goes_on():
            if self._ensemble.was_skipped(loss):
                return
            self._ensemble.advance(loss)
        super().step(epoch)

    def _check_groups(self) -> None:
        """Raise, before anything moves, if groups have come or gone since this was built.

        PyTorch's schedulers end in the middle of such a step, in a KeyError or in zip's.
        """
        if not self._runs:
            return
        if self.optimizer is not self._ensemble.optimizer:
            raise UsageError(
                "optimizer must stay the one that the scheduler was built on, got another "
                f"{type(self.optimizer).__name__}; build a new scheduler on it, and load the "
                "state_dict() of the old one"
            )
        built, now = len(self._ensemble.hyperparameters), len(self.optimizer.param_groups)
        if built != now:
            raise UsageError(
                f"the optimizer must keep the {built} parameter groups that the scheduler was "
                f"built with, got {now} at step {self.last_epoch}; call add_param_group() before "
                "the scheduler is built, or build a new one now"
            )
        for index, group in enumerate(self.optimizer.param_groups):
            if "initial_lr" not in group:
                raise UsageError(
                    f"parameter group {index} must be the one that the scheduler was built with, "
                    f"got one without initial_lr at step {self.last_epoch}; change a group's "
                    "entries in place, or build a new scheduler now"
                )

    def _goes_on(self) -> bool:
        """Whether the run is not over; torch complains where it is."""
        return True

    def _update_lr(self, epoch: int | None = None) -> None:
        # Where rates are written: step() calls this, and so does SequentialLR without step().
        self._check_groups()
        super()._update_lr(epoch)
        if self._runs:
            self._ensemble.note_written()

    def converge(self) -> None:
        """Average the replicas now; see `hdet.Ensemble.converge`."""
        self._check_groups()
        self.ensemble.converge()

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's entries and the ensemble's, the same on every replica."""
        state = super().state_dict()
        if self.ensemble.is_on:  # no replica's own rates
            state["_last_lr"] = list(self.ensemble.base_values.values())
        return {**state, "ensemble": self.ensemble.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore on any replica; a state of PyTorch's own scheduler is welcome too.

        The length of the run that was saved holds, as in PyTorch.
        """
        self._check_state(state_dict)
        self._warn_of_another_length(state_dict["total_steps"])
        torch_state = {key: value for key, value in state_dict.items() if key != "ensemble"}
        super().load_state_dict(torch_state)
        self.ensemble.total_steps = self.total_steps
        if not self.ensemble.is_on:
            self.ensemble.seek(self.last_epoch, self._last_lr)
            return
        if "ensemble" in state_dict:
            self.ensemble.load_state_dict(state_dict["ensemble"])
        else:
            self.ensemble.adopt(self.last_epoch, self._last_lr)
        self._last_lr = self.ensemble.own_values()

    def _warn_of_another_length(self, other: int | None) -> None:
        """Once: after the load the two are equal."""
        if other != self.total_steps:
            warn(
                f"total_steps={self.total_steps} gives way to total_steps={other} of the run that "
                f"was saved, as in PyTorch; build the scheduler with total_steps={other}, or "
                f"{self._other_length}"
            )

    def _check_state(self, state: Any) -> None:
        """Raise, without changing anything, if ``state`` could not be restored."""
        checks.instance("state_dict", state, dict, remedy=checks.SAVED)
        missing = {"last_epoch", "total_steps", "_last_lr"} - set(state)
        if missing:
            raise InvalidValueError(
                f"state_dict must be a {type(self).__name__}'s, got one without "
                f"{sorted(missing)}; {checks.SAVED}"
            )
        epoch, rates = state["last_epoch"], state["_last_lr"]
        checks.integer("state_dict['last_epoch']", epoch, minimum=-1, remedy=checks.SAVED)
        total_steps = checked_total_steps(state["total_steps"])
        if total_steps is not None and epoch > total_steps:
            raise InvalidValueError(
                f"state_dict['last_epoch'] must be at most its total_steps, got {epoch} of "
                f"{total_steps}; {checks.SAVED}"
            )
        count = len(self.optimizer.param_groups)
        if not isinstance(rates, list) or len(rates) != count:
            raise InvalidValueError(
                f"state_dict must hold a rate for each of the {count} parameter groups, got "
                f"{checks.shown(rates)}; build the optimizer with the groups of the run that was "
                "saved"
            )
        torch_state = {key: own for key, own in state.items() if key != "ensemble"}
        del torch_state["total_steps"]  # may be None, and may differ
        saved.check_scheduler("state_dict", torch_state, self, super().state_dict())
        for index, rate in enumerate(rates):
            number = float(rate)
            checks.real(f"state_dict['_last_lr'][{index}]", number, low=0.0, remedy=checks.SAVED)
        if "ensemble" in state:
            self.ensemble.check_state(state["ensemble"])

    def __getstate__(self) -> tuple[dict[str, Any], Ensemble]:
        return self.__dict__, self._ensemble

    def __setstate__(self, state: tuple[dict[str, Any], Ensemble]) -> None:
        """Slots need this pair for pickle protocols 0 and 1, which PyTorch's schedulers know."""
        entries, self._ensemble = state
        self.__dict__.update(entries)


def _shown(rate: Any) -> str:
    if isinstance(rate, torch.Tensor) and rate.device.type != "cpu":
        return f"on {rate.device}"
    return f"{float(rate):.4g}"


def read_rates(optimizer: torch.optim.Optimizer) -> list[Value]:
    """Each group's rate; a tensor is copied."""
    rates = (group["lr"] for group in optimizer.param_groups)
    return [rate.clone() if isinstance(rate, torch.Tensor) else rate for rate in rates]


def checked_rates(
    optimizer: torch.optim.Optimizer, spread_ratio: float | Sequence[float]
) -> list[LearningRate]:
    """A hyperparameter for each group's rate, checked against the optimiser."""
    checked_optimizer(optimizer)
    count = len(optimizer.param_groups)
    ratios = spread_ratio if isinstance(spread_ratio, list | tuple) else [spread_ratio] * count
    if len(ratios) != count:
        raise InvalidValueError(
            f"spread_ratio must be a number or one for each of the {count} parameter groups, got "
            f"{len(ratios)} values; pass one number for all of them"
        )
    rates = [LearningRate(group, spread_ratio=ratio) for group, ratio in enumerate(ratios)]
    for rate in rates:
        rate.check(optimizer)
    return rates
