"""`AutoLR`: a scheduler without a learning rate."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch.optim import lr_scheduler

from hdet import arguments, checks
from hdet.arguments import checked_model, checked_total_steps
from hdet.controllers import AbstractController, LongHorizonController
from hdet.errors import InvalidTypeError, InvalidValueError, UsageError, warn
from hdet.guard import Guard
from hdet.hyperparameters import LearningRate
from hdet.plan import Value
from hdet.replicas import AbstractReplicas, resolve
from hdet.schedulers.base import EnsembleScheduler, checked_rates
from hdet.signals import AbstractSignal, GradientProduct, Losses, PairedProbe, Probe

_RATES = ("lr", "max_lr", "base_lr", "learning_rate")


class _TakesNoRate:
    """Says what to do instead to whoever gives a rate, as every other scheduler is given one.

    In a base class, so that ``inspect.signature(AutoLR)`` is that of the constructor.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **given: Any) -> Self:
        """Look at the names alone; the constructor does the rest."""
        for name in set(_RATES) & set(given):
            if name not in inspect.signature(cls.__init__).parameters:
                shown = reprlib.repr(given[name])
                raise InvalidTypeError(
                    f"{cls.__name__} takes no learning rate, got {name}={shown}; leave it out, or "
                    "pass bounds=(low, high) to keep what is found within them, or use hdet."
                    "OneCycleLR(optimizer, max_lr=...) for a given one"
                )
        return super().__new__(cls)


GUARD = Guard(device="cpu")
"""On the host, for an accelerator has better use for the memory."""


class AutoLR(_TakesNoRate, EnsembleScheduler, lr_scheduler.LRScheduler):
    """Finds the learning rate during the run: climbs from almost nothing, balances, then anneals.

    No rate has to be given. The climb is the warmup. From its end on the rate follows the balance
    of progress and noise along the path that the parameters have taken (`hdet.GradientProduct`).
    Over the last ``anneal`` part of the run it falls linearly to zero, and nothing steers it then.

    ::

        scheduler = hdet.AutoLR(optimizer, total_steps=S)
        for batch in loader:
            loss = loss_fn(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step(loss)  # the guard judges by it; step() works too

    Args:
        optimizer: its groups' ``lr`` are read as relative to each other: groups of 1e-3 and 1e-4
            keep the ratio ten to one, whatever is found.
        total_steps: S, the optimiser steps of the run. None: hold until `anneal` is called.
        probe: `hdet.Probe` to judge by the loss of further batches, for example held-out ones,
            rather than by the gradients of the training itself.
        anneal: the last part of the run, over which the rate falls to zero, in [0, 1).
        last_epoch: as in PyTorch; what was found comes from `load_state_dict`.
        relative_rates: False makes all groups start equal.
        per_group: find a rate for each group on its own, rather than one for all.
        bounds: the interval that the largest group's rate is kept in until the anneal.
        controller: how the rate moves; None is `hdet.LongHorizonController`. It has to be relative.
        signal: what is measured; None is `hdet.GradientProduct`, or `hdet.PairedProbe` with a
            probe.
        spread_ratio: alpha of Eq. 1: how far replicas explore around the rate that was found. 0 by
            default: exploration has a price, and the signal does not need it.
        replicas: None is the default process group, or a single replica.
        seed: keys the permutations.
        model: if given, its floating-point buffers are averaged with the parameters.
        reference_device: where the two parameter copies live that the signal needs; None is next to
            the parameters, "cpu" frees the accelerator.
        guard: when to go back to the last good point, at a lower rate, see `hdet.Guard`. By default
            it keeps that point on the host; None goes without.
    """

    __slots__ = ()
    _other_length = "end it elsewhere with anneal(num_steps)"

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_steps: int | None = None,
        probe: Probe | None = None,
        anneal: float = 0.4,
        last_epoch: int = -1,
        *,
        relative_rates: bool = True,
        per_group: bool = False,
        bounds: tuple[float, float] = (0.0, math.inf),
        controller: AbstractController | None = None,
        signal: AbstractSignal | None = None,
        spread_ratio: float | Sequence[float] = 0.0,
        replicas: AbstractReplicas | None = None,
        seed: int = 0,
        model: torch.nn.Module | None = None,
        reference_device: torch.device | str | None = None,
        guard: Guard | None = GUARD,
    ) -> None:
        rates = checked_rates(optimizer, spread_ratio)
        self.total_steps = checked_total_steps(total_steps)
        part = checks.real(
            "anneal", anneal, low=0.0, high=1.0, high_open=True, remedy="the default is 0.4"
        )
        checked_model(model)
        control = _checked_controller(controller, self.total_steps, probe)
        measured = _resolved_signal(signal, probe, per_group, reference_device)
        arguments.check_signal_serves(measured, control, optimizer)
        resolve(replicas, explores=False, controls=True)
        checks.seed(seed)
        # Read once, while nothing runs: a rate may be a tensor on a device.
        self._scales = _scales(optimizer, checks.boolean("relative_rates", relative_rates))
        self._start_value = _inside(control.start_value or 0.0, bounds)
        self._anneal_start, self._anneal_steps = -1, 0
        if self.total_steps is not None and part > 0.0:
            self._anneal_start = int((1.0 - part) * self.total_steps)
            self._anneal_steps = self.total_steps - self._anneal_start
        super().__init__(optimizer, last_epoch)
        self._start(
            self.total_steps,
            self._planned(),
            hyperparameters=[
                LearningRate(
                    rate.group,
                    spread_ratio=rate.spread_ratio,
                    # A group whose rate is 0 keeps it, whatever the bounds of the others.
                    bounds=(bounds[0] * scale, bounds[1] * scale) if scale else (0.0, math.inf),
                )
                for rate, scale in zip(rates, self._scales, strict=True)
            ],
            signal=measured,
            controller=control,
            replicas=replicas,
            seed=seed,
            model=model,
            guard=guard,
        )
        self._freeze_if_due()

    def get_lr(self) -> list[float | torch.Tensor]:
        """The rates of this replica for the coming step."""
        planned = self._planned()
        if not self._runs:
            return [value * self._start_value for value in planned]
        return self._explored(planned)

    def step(  # type: ignore[override]  # the loss comes first, as in our base class
        self, loss: Losses | None = None, epoch: int | None = None
    ) -> None:
        """Follow one ``optimizer.step()``.

        Args:
            loss: this step's training loss, for the guard and the record; not waited for.
            epoch: PyTorch's deprecated way to jump to a step.
        """
        super().step(loss, epoch)
        if self._runs:
            self._freeze_if_due()

    def anneal(self, num_steps: int) -> None:
        """Let the rate fall linearly to zero over the next ``num_steps`` steps, from now on.

        For runs whose length was not known: past the end the rate stays at zero, and the first such
        step warns. Where ``total_steps`` was given, the end of this anneal takes its place, be it
        earlier or later, and a step past it is an error as ever.
        """
        num_steps = checks.integer(
            "num_steps", num_steps, minimum=1, remedy="about as many steps as have been taken"
        )
        if self._anneals():
            raise UsageError(
                f"anneal() was called at step {self.last_epoch}, and the anneal runs since step "
                f"{self._anneal_start}; call it once, or leave it to total_steps"
            )
        self._anneal_start, self._anneal_steps = self.last_epoch, num_steps
        if self.total_steps is not None:
            self.total_steps = self.ensemble.total_steps = self.last_epoch + num_steps
        self.ensemble.freeze()

    def _goes_on(self) -> bool:
        end = self._anneal_start + self._anneal_steps
        if self.total_steps is not None and self.last_epoch >= self.total_steps:
            raise UsageError(
                f"step() was called {self.last_epoch + 1} times, and total_steps is "
                f"{self.total_steps}; build it with the number of optimiser steps that the run "
                "takes, or call anneal() with as many as are left"
            )
        if self.total_steps is None and self._anneal_start >= 0 and self.last_epoch == end:
            warn(
                f"the anneal ended at step {end} and the rate is 0 from there on: further steps "
                "train nothing; end the run there, or call anneal() with more steps"
            )
        return True

    def _check_state(self, state: Any) -> None:
        super()._check_state(state)
        missing = {"_scales", "_anneal_start", "_anneal_steps", "ensemble"} - set(state)
        if missing:
            raise InvalidValueError(
                f"state_dict must be an AutoLR's, got one without {sorted(missing)}; {checks.SAVED}"
            )
        checks.saved_numbers(
            "state_dict['_scales']", state["_scales"], length=len(self.optimizer.param_groups)
        )
        for key, minimum in (("_anneal_start", -1), ("_anneal_steps", 0)):
            checks.integer(f"state_dict[{key!r}]", state[key], minimum=minimum, remedy=checks.SAVED)

    def _further_facts(self) -> dict[str, str]:
        """The phase: whether it still climbs is the controller's to know."""
        if not self._runs:
            return {}
        states = self._ensemble.controller_states.values()
        phase = "climb" if any(own.get("climbing") for own in states) else "balance"
        return {"phase": repr("anneal" if self._anneals() else phase)}

    def _anneals(self) -> bool:
        return 0 <= self._anneal_start <= self.last_epoch

    def _freeze_if_due(self) -> None:
        if self._anneals():
            self._ensemble.freeze()

    def _planned(self) -> list[Value]:
        """Each group's scale, times 1 until the anneal and then falling linearly to 0."""
        factor = 1.0
        if self._anneals():
            left = self._anneal_start + self._anneal_steps - self.last_epoch
            factor = max(left, 0) / self._anneal_steps
        return [scale * factor for scale in self._scales]


def _scales(optimizer: torch.optim.Optimizer, relative_rates: bool) -> list[float]:
    """Each group's rate relative to the largest."""
    # What PyTorch's constructor is about to take for the groups' base rates.
    given = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    if not relative_rates:
        return [1.0] * len(given)
    if not all(0.0 <= rate < math.inf for rate in given) or max(given) == 0.0:
        raise InvalidValueError(
            f"the groups' lr must be relative rates of at least 0, one above it, got {given}; "
            "leave PyTorch's default, or pass relative_rates=False"
        )
    return [rate / max(given) for rate in given]


def _checked_controller(
    controller: Any, total_steps: int | None, probe: Probe | None
) -> AbstractController:
    if controller is None:
        # A climb that has not turned after a third of the run will not.
        climb_end = None if total_steps is None else max(total_steps // 3, 1)
        # A probe costs forward passes, so it is asked less often.
        growth = 0.1 if probe is None else 0.25
        return LongHorizonController(climb_end=climb_end, cycle_growth=growth)
    remedy = "pass a hdet.LongHorizonController(...) or None"
    found: AbstractController = checks.instance(
        "controller", controller, AbstractController, remedy=remedy
    )
    if found.start_value is None:
        raise InvalidValueError(
            f"controller must start from a value of its own, got {found!r}; {remedy}"
        )
    return found


def _resolved_signal(
    signal: Any, probe: Any, per_group: Any, reference_device: Any
) -> AbstractSignal:
    checks.boolean("per_group", per_group)
    if signal is not None:
        if probe is not None or per_group or reference_device is not None:
            raise InvalidValueError(
                "signal must stand alone, got it with probe, per_group or reference_device; give "
                "those to the signal itself"
            )
        remedy = "pass a hdet.GradientProduct(...) or None"
        found: AbstractSignal = checks.instance("signal", signal, AbstractSignal, remedy=remedy)
        return found
    if probe is None:
        return GradientProduct(per_group=per_group, reference_device=reference_device)
    return PairedProbe(probe, per_group=per_group, reference_device=reference_device)


def _inside(value: float, bounds: Any) -> float:
    """The start value, if the bounds let it; else the nearest that they do."""
    low, high = LearningRate(0, bounds=bounds).bounds
    return min(max(value, low), high)
