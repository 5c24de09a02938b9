"""Arguments that several constructors share, and the head of a saved state: checked on entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hdet import checks, optimizers
from hdet.controllers import AbstractController, FixedController
from hdet.errors import InvalidTypeError, InvalidValueError, UsageError, warn
from hdet.guard import Guard
from hdet.hyperparameters import AbstractHyperparameter
from hdet.signals import AbstractSignal, TrainingLoss

STATE_VERSION = 3
"""Version 1 had neither cycle, cycle_end nor signal; version 2 kept a signal's samples and no
losses of the cycle so far."""


def checked_model(model: Any) -> torch.nn.Module | None:
    """The model, if it is one or None."""
    found: torch.nn.Module | None = checks.optional(
        "model", model, torch.nn.Module, remedy="pass the module that is trained, or None"
    )
    return found


def checked_cycle_steps(cycle_steps: Any) -> int:
    """T, if it is a number of steps."""
    return checks.integer("cycle_steps", cycle_steps, minimum=1, remedy="the default is 1000")


def checked_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The optimiser, if it is one and has parameters."""
    found: torch.optim.Optimizer = checks.instance(
        "optimizer", optimizer, torch.optim.Optimizer, remedy="pass one from torch.optim"
    )
    if not optimizers.parameters(found):
        raise InvalidValueError(
            "optimizer must have parameters, got one without any; pass it model.parameters()"
        )
    return found


def checked_hyperparameters(
    hyperparameters: Any, optimizer: torch.optim.Optimizer
) -> tuple[AbstractHyperparameter, ...]:
    """The hyperparameters, if there are some, each can be written, and none comes twice."""
    if not isinstance(hyperparameters, list | tuple) or len(hyperparameters) == 0:
        raise InvalidTypeError(
            f"hyperparameters must be a non-empty list, got {hyperparameters!r}; pass for example "
            "[hdet.LearningRate(0, spread_ratio=1/9)]"
        )
    for hyperparameter in hyperparameters:
        checks.instance(
            "each of hyperparameters",
            hyperparameter,
            AbstractHyperparameter,
            remedy="pass for example hdet.LearningRate(0)",
        )
        hyperparameter.check(optimizer)
        hyperparameter.check_value(optimizer)
    names = [hyperparameter.name for hyperparameter in hyperparameters]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidValueError(
            f"hyperparameters must be different, got {twice} more than once; leave one out"
        )
    return tuple(hyperparameters)


def checked_total_steps(total_steps: Any) -> int | None:
    """S, if it is a number of steps or None."""
    return checks.optional_integer(
        "total_steps", total_steps, minimum=1, remedy="pass the run's steps, or None for no limit"
    )


def warn_of_long_cycle(cycle_steps: int, total_steps: int | None) -> None:
    """Warn if a run is over before its first averaging."""
    if total_steps is not None and cycle_steps > total_steps:
        warn(
            f"cycle_steps={cycle_steps} is longer than the run of {total_steps} steps: nothing is "
            "averaged before converge(); lower cycle_steps"
        )


def checked_guard(guard: Any) -> Guard | None:
    """Ours, or none."""
    found: Guard | None = checks.optional(
        "guard", guard, Guard, remedy="pass hdet.Guard(...), or None to go without"
    )
    return found


def check_not_over(step: int, total_steps: int | None) -> None:
    """Raise if a run has no step left."""
    if total_steps is not None and step >= total_steps:
        raise UsageError(
            f"step() was called {step + 1} times, and total_steps is {total_steps}; build it with "
            "the number of optimiser steps that the run takes"
        )


def checked_signal(signal: Any) -> AbstractSignal:
    """The signal, the training loss for None."""
    found: AbstractSignal = checks.instance(
        "signal",
        TrainingLoss() if signal is None else signal,
        AbstractSignal,
        remedy="pass hdet.TrainingLoss() or None",
    )
    return found


def checked_controller(controller: Any) -> AbstractController:
    """The controller, none that moves anything for None."""
    found: AbstractController = checks.instance(
        "controller",
        FixedController() if controller is None else controller,
        AbstractController,
        remedy="pass hdet.PaperController(...) or None",
    )
    return found


def check_signal_serves(
    signal: AbstractSignal, controller: AbstractController, optimizer: torch.optim.Optimizer
) -> None:
    """Raise if the controller needs a slope, and the signal or the optimiser does not give one."""
    if controller.needs_trend and not signal.has_trends:
        raise InvalidValueError(
            f"signal must tell a slope for {controller!r}, got {type(signal).__name__}; pass "
            "signal=hdet.GradientProduct()"
        )
    if controller.needs_trend and optimizers.needs_closure(optimizer):
        raise InvalidTypeError(
            f"optimizer must step from one gradient for {controller!r}, got "
            f"{type(optimizer).__name__}, which evaluates a closure at points of its own choice; "
            "use for example torch.optim.AdamW, or give it a rate with hdet.OneCycleLR"
        )


def checked_replica(replica: Any, num_replicas: int) -> int:
    """The replica's index, if there is one of that index."""
    remedy = f"the replicas are 0 to {num_replicas - 1}"
    found = checks.integer("replica", replica, minimum=0, remedy=remedy)
    if found >= num_replicas:
        raise InvalidValueError(f"replica must be below {num_replicas}, got {replica}; {remedy}")
    return found


def check_still_there(
    optimizer: torch.optim.Optimizer,
    built_on: torch.optim.Optimizer,
    hyperparameters: Sequence[AbstractHyperparameter],
) -> None:
    """Raise if the optimiser, or what is steered in it, has been changed since; reads no tensor."""
    if optimizer is not built_on:
        raise UsageError(
            f"optimizer must stay the {type(built_on).__name__} that the scheduler was built on, "
            f"got another {type(optimizer).__name__}; build a new scheduler on it, and load the "
            "state_dict() of the old one"
        )
    if not any(group.get("params") for group in optimizer.param_groups):
        raise UsageError(
            f"optimizer must keep its parameters, got {len(optimizer.param_groups)} groups without "
            "any; build a new optimizer and a new scheduler for a new model"
        )
    for hyperparameter in hyperparameters:
        hyperparameter.check(optimizer)


def part_of(state: dict[str, Any], key: str) -> dict[str, Any]:
    """A part of a saved state; empty where an older release had none."""
    found: dict[str, Any] = checks.instance(
        f"state[{key!r}]", state.get(key, {}), dict, remedy=checks.SAVED
    )
    return found


def check_header(state: Any, *, counts_cycles: bool) -> None:
    """Raise if ``state`` is not one of an ensemble, or its counters cannot be.

    Switched off, older releases left ``cycle_end`` where the first cycle ended.
    """
    version = state.get("version") if isinstance(state, dict) else None
    if not isinstance(version, int) or not 1 <= version <= STATE_VERSION:
        raise InvalidValueError(
            f"state must be what state_dict() returned (version 1 to {STATE_VERSION}), got a "
            f"{type(state).__name__} of version {checks.shown(version)}; {checks.SAVED}"
        )
    step, converged_step = (
        checks.integer(f"state[{key!r}]", state.get(key), minimum=0, remedy=checks.SAVED)
        for key in ("step", "converged_step")
    )
    if converged_step > step:
        raise InvalidValueError(
            f"state['converged_step'] must be at most state['step'], got {converged_step} at step "
            f"{step}; {checks.SAVED}"
        )
    if "num_replicas" in state:
        checks.integer(
            "state['num_replicas']", state["num_replicas"], minimum=1, remedy=checks.SAVED
        )
    if "in_charge" in state:
        checks.boolean("state['in_charge']", state["in_charge"])
    if "cycle_end" in state:
        first = step + 1 if counts_cycles else 1
        checks.integer("state['cycle_end']", state["cycle_end"], minimum=first, remedy=checks.SAVED)
        checks.integer("state['cycle']", state.get("cycle"), minimum=0, remedy=checks.SAVED)
