"""What the values would be if nobody explored: a constant, a closed form, or any torch scheduler.

An `Ensemble` spreads its replicas around the planned values until a controller takes them over.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hdet import checks
from hdet.errors import InvalidTypeError, InvalidValueError
from hdet.hyperparameters import AbstractHyperparameter
from hdet.saved import check_scheduler

Value = float | torch.Tensor
"""A value as the optimiser holds it: a float, or a tensor that must not be waited for."""


class AbstractPlan(abc.ABC):
    """The planned value of each hyperparameter, step by step."""

    @abc.abstractmethod
    def values(self, step: int) -> list[Value]:
        """The values after ``step`` optimiser steps; called with the same step or the next one."""

    @abc.abstractmethod
    def describe(self) -> list[str]:
        """What replicas must agree on, a line each, but for the values in use."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Plain types and tensors."""

    @abc.abstractmethod
    def check_state(self, state: Any) -> None:
        """Raise if `load_state_dict` could not restore ``state``."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore."""


Schedule = Callable[[int], float] | torch.optim.lr_scheduler.LRScheduler | AbstractPlan
"""What a user may pass as the schedule."""


def resolve(
    schedule: Any,
    optimizer: torch.optim.Optimizer,
    hyperparameters: Sequence[AbstractHyperparameter],
) -> AbstractPlan:
    """The plan for None, a ``step -> factor`` function, a torch LRScheduler or a plan."""
    if isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
        return TorchPlan(schedule, optimizer, hyperparameters)
    if isinstance(schedule, AbstractPlan):
        return schedule
    if schedule is None or (callable(schedule) and not isinstance(schedule, type)):
        _check_arity(schedule)
        values = [hyperparameter.read(optimizer) for hyperparameter in hyperparameters]
        return ClosedFormPlan(schedule, values)
    raise InvalidTypeError(
        "schedule must be None, a function from the step to a factor, or a torch LRScheduler, got "
        f"{schedule!r} ({type(schedule).__name__}); pass for example "
        "functools.partial(hdet.functional.cosine, total_steps=10_000)"
    )


def _check_arity(function: Callable[[int], float] | None) -> None:
    if function is None:
        return
    try:
        inspect.signature(function).bind(0)
    except TypeError as error:
        raise InvalidTypeError(
            f"schedule must be a function that takes the step alone, got {function!r} ({error}); "
            "bind its other arguments with functools.partial"
        ) from None
    except ValueError:
        return  # builtins have no signature to look at


class GivenPlan(AbstractPlan):
    """Values that a scheduler of ours computes, and puts into ``given`` before it asks for them."""

    def __init__(
        self, given: Sequence[Value], scheduler: torch.optim.lr_scheduler.LRScheduler
    ) -> None:
        self.given = list(given)
        self._description = _describe_scheduler(scheduler)

    def values(self, step: int) -> list[Value]:
        """What was given last."""
        return self.given

    def describe(self) -> list[str]:
        """The scheduler's settings."""
        return self._description

    def state_dict(self) -> dict[str, Any]:
        """Whoever gives the values keeps the state."""
        return {}

    def check_state(self, state: Any) -> None:
        """It is empty."""
        checks.instance("state['plan']", state, dict, remedy=checks.SAVED)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class ClosedFormPlan(AbstractPlan):
    """The initial value times a factor of the step, like `torch.optim.lr_scheduler.LambdaLR`."""

    def __init__(self, factor: Callable[[int], float] | None, initial: Sequence[Value]) -> None:
        self._factor = factor
        self._initial = [float(value) for value in initial]

    def values(self, step: int) -> list[Value]:
        """The initial values times the factor."""
        if self._factor is None:
            return list(self._initial)
        factor = checks.real(
            f"the schedule's factor at step {step}",
            self._factor(step),
            low=0.0,
            remedy="return a float, relative to the optimiser's initial value",
        )
        return [value * factor for value in self._initial]

    def describe(self) -> list[str]:
        """The function's name and what it is bound to."""
        factor = self._factor
        if isinstance(factor, functools.partial):
            bound = {"args": factor.args, **factor.keywords}
            return [*_lines("function", factor.func), *_lines("bound", bound)]
        return _lines("function", factor)

    def state_dict(self) -> dict[str, Any]:
        """The initial values; the factor is the user's code."""
        return {"initial": list(self._initial)}

    def check_state(self, state: Any) -> None:
        """As many initial values as there are hyperparameters."""
        checks.instance("state['plan']", state, dict, remedy=checks.SAVED)
        initial = state.get("initial")
        checks.saved_numbers("state['plan']['initial']", initial, length=len(self._initial))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the initial values."""
        self._initial = [float(value) for value in state["initial"]]


class TorchPlan(AbstractPlan):
    """A torch LRScheduler for the planned rates.

    Most torch schedulers compute the next rate from the one in the optimiser, where a replica's own
    value stands. So the planned rate is put back before each of their steps and read after it.
    """

    def __init__(
        self,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        optimizer: torch.optim.Optimizer,
        hyperparameters: Sequence[AbstractHyperparameter],
    ) -> None:
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise InvalidTypeError(
                "schedule must be an LRScheduler that needs no metric, got ReduceLROnPlateau; "
                "use a controller to react to losses"
            )
        if _explores(scheduler):
            raise InvalidTypeError(
                "schedule must be a plain LRScheduler, got one that explores by itself "
                f"({type(scheduler).__name__}); pass torch's own scheduler of that shape"
            )
        if scheduler.optimizer is not optimizer:
            raise InvalidValueError(
                "schedule must drive the ensemble's own optimizer, got a scheduler of another one; "
                "build both on the same optimizer"
            )
        self._scheduler = scheduler
        self._optimizer = optimizer
        self._hyperparameters = hyperparameters
        self._step = 0
        self._values = self._read()

    def values(self, step: int) -> list[Value]:
        """The scheduler's rates, stepping it if ``step`` is new."""
        if step > self._step:
            for hyperparameter, value in zip(self._hyperparameters, self._values, strict=True):
                hyperparameter.write(self._optimizer, value)
            self._scheduler.step()
            self._values = self._read()
            self._step = step
        return self._values

    def describe(self) -> list[str]:
        """The scheduler's settings."""
        return _describe_scheduler(self._scheduler)

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's state and the planned rates it stands at."""
        return {
            "step": self._step,
            "values": [float(value) for value in self._values],
            "scheduler": self._scheduler.state_dict(),
        }

    def check_state(self, state: Any) -> None:
        """A step, planned rates and some scheduler's state."""
        checks.instance("state['plan']", state, dict, remedy=checks.SAVED)
        step, values, saved = (state.get(key) for key in ("step", "values", "scheduler"))
        checks.integer("state['plan']['step']", step, minimum=0, remedy=checks.SAVED)
        checks.saved_numbers("state['plan']['values']", values, length=len(self._values))
        held = self._scheduler.state_dict()
        check_scheduler("state['plan']['scheduler']", saved, self._scheduler, held)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore both."""
        self._scheduler.load_state_dict(state["scheduler"])
        self._step = int(state["step"])
        self._values = [float(value) for value in state["values"]]

    def _read(self) -> list[Value]:
        read = (hyperparameter.read(self._optimizer) for hyperparameter in self._hyperparameters)
        return [value.clone() if isinstance(value, torch.Tensor) else value for value in read]


def _explores(scheduler: torch.optim.lr_scheduler.LRScheduler) -> bool:
    """Whether it, or a scheduler inside it, is one of ours, which has an ensemble of its own."""
    inside = getattr(scheduler, "_schedulers", ())
    return hasattr(type(scheduler), "ensemble") or any(_explores(own) for own in inside)


_PROGRESS = {"last_epoch", "_step_count", "_last_lr"}
_KEPT_IN_GROUPS = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")


def _describe_scheduler(scheduler: torch.optim.lr_scheduler.LRScheduler) -> list[str]:
    """Its settings, a line each; also those that torch's schedulers keep in the optimiser."""
    settings = {name: own for name, own in vars(scheduler).items() if name not in _PROGRESS}
    kept = [
        {name: group[name] for name in _KEPT_IN_GROUPS if name in group}
        for group in scheduler.optimizer.param_groups
    ]
    return [type(scheduler).__name__, *_lines("", settings), *_lines("group", kept)]


def _lines(name: str, value: Any) -> list[str]:
    """``name=value`` of everything in it that is the same text on every process."""
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        return [f"{name}.{line}" for line in _describe_scheduler(value)]
    if isinstance(value, dict):
        parts = [(f"{name}.{key}", value[key]) for key in sorted(value)]
        return [line for key, own in parts for line in _lines(key.lstrip("._"), own)]
    if isinstance(value, list | tuple):
        return [line for i, own in enumerate(value) for line in _lines(f"{name}[{i}]", own)]
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool | int | float | str | None):
        return [f"{name}={value!r}"]
    return [f"{name}={value.__qualname__}"] if hasattr(value, "__qualname__") else []
