"""`OneCycleLR`: the one changed line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch.optim import lr_scheduler

from hdet import checks, functional
from hdet.arguments import checked_cycle_steps, checked_guard, checked_model
from hdet.controllers import FixedController, PaperController
from hdet.errors import warn
from hdet.guard import Guard
from hdet.hyperparameters import LearningRate
from hdet.replicas import AbstractReplicas, resolve
from hdet.schedulers.base import EnsembleScheduler, checked_rates
from hdet.signals import Losses


class OneCycleLR(EnsembleScheduler, lr_scheduler.OneCycleLR):
    r"""`torch.optim.lr_scheduler.OneCycleLR` whose replicas explore around it (Algorithm 1).

    PyTorch's arguments come first, in PyTorch's order and with its defaults. With
    ``spread_ratio=0`` and ``auto_lr=False`` this *is* PyTorch's scheduler: every rate is equal to
    the last bit, and no tensor is moved.

    With a spread, replica r trains at $\eta(t) \rho_r$ (Eq. 1), parameters are averaged every
    ``cycle_steps`` steps (Eq. 3), and each parameter group's multipliers are dealt anew after that
    (Eq. 9). With ``auto_lr`` each group's base rate follows Eqs. 4-8 from step ``warmup_steps`` on,
    starting from the rate in use; momentum keeps cycling as planned.

    Call ``scheduler.step(loss)`` after ``optimizer.step()``, and ``scheduler.converge()`` at the
    end of a run whose length is not a multiple of ``cycle_steps``.

    Args:
        optimizer: as in PyTorch; its groups' rates become hyperparameters ``lr/0``, ``lr/1``, ...
        max_lr: as in PyTorch.
        total_steps: as in PyTorch.
        epochs: as in PyTorch.
        steps_per_epoch: as in PyTorch.
        pct_start: as in PyTorch.
        anneal_strategy: as in PyTorch.
        cycle_momentum: as in PyTorch.
        base_momentum: as in PyTorch.
        max_momentum: as in PyTorch.
        div_factor: as in PyTorch.
        final_div_factor: as in PyTorch.
        three_phase: as in PyTorch.
        last_epoch: as in PyTorch; a controller's state comes from `load_state_dict`.
        spread_ratio: alpha of Eq. 1, in [0, 1), or one for each parameter group; the paper's is
            1/9.
        cycle_steps: T, steps between two averagings.
        auto_lr: whether the paper's controller moves the base rates.
        warmup_steps: S_warm, the step from which on it does. At 0 it starts from OneCycleLR's
            initial rate, max_lr / div_factor.
        temperature: sigma of Eq. 4.
        meta_lr: lambda of Eq. 7.
        meta_momentum: beta of Eq. 7.
        replicas: None means the default process group, or a single replica without one; else
            `hdet.DistributedReplicas` or `hdet.VirtualReplicas`.
        seed: keys the permutations.
        model: if given, its floating-point buffers (BatchNorm's statistics) are averaged too.
        literal_decay: use Eq. 8 as printed, see `hdet.functional.base_decay`.
        relative_temperature: take ``temperature`` in units of the replicas' own dispersion.
        guard: `hdet.Guard` to go back to the last good point, at lower rates, where the loss rises.
    """

    __slots__ = ()
    total_steps: int

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
        *,
        spread_ratio: float | Sequence[float] = 0.0,
        cycle_steps: int = 1000,
        auto_lr: bool = False,
        warmup_steps: int = 0,
        temperature: float = 0.1,
        meta_lr: float = 0.5,
        meta_momentum: float = 0.9,
        replicas: AbstractReplicas | None = None,
        seed: int = 0,
        model: torch.nn.Module | None = None,
        literal_decay: bool = False,
        relative_temperature: bool = False,
        guard: Guard | None = None,
    ) -> None:
        rates = checked_rates(optimizer, spread_ratio)  # all is checked before anything changes
        control = PaperController(
            start_step=warmup_steps,
            temperature=temperature,
            relative_temperature=relative_temperature,
            meta_lr=meta_lr,
            meta_momentum=meta_momentum,
        )
        _check_shape(max_lr, div_factor, final_div_factor, (base_momentum, max_momentum))
        _check_rest(rates, cycle_steps, auto_lr, replicas, seed, model, literal_decay, guard)
        shape = _Shape(pct_start, anneal_strategy, div_factor, final_div_factor, three_phase)
        super().__init__(
            optimizer, max_lr, total_steps, epochs, steps_per_epoch, pct_start, anneal_strategy,
            cycle_momentum, base_momentum, max_momentum, div_factor, final_div_factor, three_phase,
            last_epoch,
        )  # fmt: skip
        if auto_lr:
            decay = _decay(shape, self.total_steps, warmup_steps, cycle_steps, literal_decay)
            control = control.with_decay(decay)
        self._start(
            self.total_steps, hyperparameters=rates, model=model,
            controller=control if auto_lr else FixedController(), cycle_steps=cycle_steps,
            replicas=replicas, seed=seed, guard=guard,
        )  # fmt: skip

    def get_lr(self) -> list[float | torch.Tensor]:
        """PyTorch's rates, or the controller's, times this replica's multipliers."""
        return self._explored(super().get_lr())

    def step(  # type: ignore[override]  # the loss comes first; an int is still read as the epoch
        self, loss: Losses | None = None, epoch: int | None = None
    ) -> None:
        """Follow one ``optimizer.step()``.

        Args:
            loss: this step's training loss on this replica; with virtual replicas one for each.
                Needed with ``auto_lr`` and not waited for. An ``int`` is read as PyTorch's
                deprecated positional ``epoch``.
            epoch: PyTorch's deprecated way to jump to a step.
        """
        if isinstance(loss, int) and not isinstance(loss, bool):
            loss, epoch = None, loss
        super().step(loss, epoch)

    def _check_state(self, state: Any) -> None:
        super()._check_state(state)
        remedy = checks.SAVED
        checks.integer("state_dict['total_steps']", state["total_steps"], minimum=1, remedy=remedy)

    def _goes_on(self) -> bool:
        return self.last_epoch < self.total_steps


class _Shape(NamedTuple):
    """The cycle's form, the same for all parameter groups."""

    pct_start: float
    anneal_strategy: str
    div_factor: float
    final_div_factor: float
    three_phase: bool


def _decay(
    shape: _Shape, total_steps: int, warmup_steps: int, cycle_steps: int, literal: bool
) -> float:
    """Eq. 8's gamma, from the rate in use when the controller takes over."""
    if warmup_steps >= total_steps:
        _warn_of_late_start(warmup_steps, total_steps)
        return 0.0
    in_use = functional.one_cycle(max(warmup_steps - 1, 0), total_steps, **shape._asdict())
    return functional.base_decay(
        shape.div_factor,
        shape.final_div_factor,
        # With less than a cycle left, one converge at most is there to decay at.
        num_cycles=max((total_steps - warmup_steps) / cycle_steps, 1.0),
        literal=literal,
        start_ratio=in_use,
    )


def _check_shape(
    max_lr: Any, div_factor: Any, final_div_factor: Any, momenta: tuple[Any, ...]
) -> None:
    """What PyTorch takes unseen, to write NaN or a negative rate, or to divide by it."""
    for peak in max_lr if isinstance(max_lr, list | tuple) else [max_lr]:
        is_scalar = isinstance(peak, torch.Tensor) and peak.numel() == 1
        number = float(peak) if is_scalar else peak
        checks.real("max_lr", number, low=0.0, remedy="pass the peak rate, for example 1e-3")
    checks.real("div_factor", div_factor, low=0.0, low_open=True, remedy="the default is 25")
    checks.real(
        "final_div_factor", final_div_factor, low=0.0, low_open=True, remedy="the default is 1e4"
    )
    for name, value in zip(("base_momentum", "max_momentum"), momenta, strict=True):
        given = value if isinstance(value, list | tuple) else [value]
        for momentum in (own for own in given if own is not None):  # None where it is not cycled
            remedy = "PyTorch's defaults are 0.85 and 0.95"
            checks.real(name, momentum, low=0.0, high=1.0, remedy=remedy)


def _check_rest(
    rates: Sequence[LearningRate],
    cycle_steps: Any,
    auto_lr: Any,
    replicas: Any,
    seed: Any,
    model: Any,
    literal_decay: Any,
    guard: Any,
) -> None:
    checked_cycle_steps(cycle_steps)
    if checks.boolean("auto_lr", auto_lr):
        _warn_of_nothing_to_compare(rates)
    resolve(replicas, explores=False, controls=False)
    checks.seed(seed)
    checked_model(model)
    checked_guard(guard)
    checks.boolean("literal_decay", literal_decay)


def _warn_of_nothing_to_compare(rates: Sequence[LearningRate]) -> None:
    """One replica alone is warned of where the spread would be lost."""
    if not any(rate.spread_ratio > 0.0 for rate in rates):
        warn(
            "auto_lr has nothing to compare, because spread_ratio is 0: the base rate only decays; "
            "pass spread_ratio=1/9 and several replicas"
        )


def _warn_of_late_start(warmup_steps: int, total_steps: int) -> None:
    warn(
        f"auto_lr never starts, because warmup_steps={warmup_steps} is not below total_steps="
        f"{total_steps}; lower warmup_steps"
    )
