"""The values in force: shared base values, who moves them, and what each replica makes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from hdet import checks, ownership
from hdet.assignment import Assignment
from hdet.controllers import AbstractController, Evidence
from hdet.errors import InvalidValueError
from hdet.hyperparameters import AbstractHyperparameter
from hdet.plan import AbstractPlan, Value
from hdet.replicas import AbstractReplicas
from hdet.signals import Trend


class Values:
    """Base values: the plan's until the controller's first step, the controller's from then on.

    With a relative controller they are the plan's throughout, times the factor that it moves.

    Args:
        optimizer: where values are read and written.
        hyperparameters: what varies.
        plan: the values if nobody explored.
        controller: moves the base values.
        assignment: who has which multiplier.
        replicas: which of them is here.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        hyperparameters: Sequence[AbstractHyperparameter],
        plan: AbstractPlan,
        controller: AbstractController,
        assignment: Assignment,
        replicas: AbstractReplicas,
    ) -> None:
        self._optimizer = optimizer
        self._hyperparameters = hyperparameters
        self._plan = plan
        self._controller = controller
        self._assignment = assignment
        self._replicas = replicas
        self._states = [controller.init() for _ in hyperparameters]
        self._controlled = False
        self.frozen = False
        planned = plan.values(0)
        self._factors: list[float] | None = None
        self._scales: list[float] = []
        if controller.start_value is not None:
            # A group whose rate is planned to be 0 has no scale of its own.
            self._scales = [float(value) or 1.0 for value in planned]
            self._factors = [
                min(max(controller.start_value, h.bounds[0] / scale), h.bounds[1] / scale)
                for h, scale in zip(hyperparameters, self._scales, strict=True)
            ]
        self._lowered = [1.0] * len(hyperparameters)
        self._base: list[Value] = self._shaped(planned)
        self._written: list[Any] = []
        self._owns_values = False
        self._displaced: list[Value] = []

    @property
    def base(self) -> list[float]:
        """The base values as numbers; waits for the device if they are tensors on one."""
        return [float(value) for value in self._base]

    def rate(self, position: int) -> float:
        """The base value now of the learning rate at this position among the learning rates.

        NaN while another scheduler or the user's own hand sets the rates. Waits for the device if a
        schedule made of tensors is in charge.
        """
        if not self.in_charge():
            return math.nan
        rates = [i for i, h in enumerate(self._hyperparameters) if h.rate_group is not None]
        return float(self._base[rates[position]])

    def controller_states(self) -> dict[str, dict[str, float]]:
        """The controller's state of each hyperparameter, by name."""
        names = [h.name for h in self._hyperparameters]
        return {name: dict(own) for name, own in zip(names, self._states, strict=True)}

    def cycle_steps(self, step: int) -> int | None:
        """The length that the controller wants for a cycle from ``step`` on; None for T."""
        wanted = [self._controller.next_cycle_steps(state, step) for state in self._states]
        return min((steps for steps in wanted if steps is not None), default=None)

    def refresh(self, step: int) -> None:
        """Move on to the values of ``step``."""
        if self._factors is not None:
            self._base = self._shaped(self._plan.values(step))
            return
        if self._controlled:
            return
        start = self._controller.start_step
        if start is None or step < start or step == 0:
            self._base = self._shaped(self._plan.values(step))
        else:
            # S_warm inside a cycle: the value in use is held until the controller first speaks.
            self._take_over()

    def seek(self, step: int) -> None:
        """Jump to a step: where the plan is in charge its value there, else the one in use."""
        if not self._controlled or self._factors is not None:
            self._base = self._shaped(self._plan.values(step))

    def of(self, replica: int | None) -> list[Value]:
        """A replica's values (Eq. 1); None is the base point."""
        if replica is None:
            return list(self._base)
        return [
            base if multiplier == 1.0 else base * multiplier
            for base, multiplier in zip(
                self._base, self._assignment.multipliers(replica), strict=True
            )
        ]

    def write(self, replica: int | None) -> None:
        """Write a replica's values into the optimiser."""
        for hyperparameter, value in zip(self._hyperparameters, self.of(replica), strict=True):
            hyperparameter.write(self._optimizer, value)
        self.note_written()

    def write_own(self) -> None:
        """Write this process's values into the optimiser."""
        self.write(self._replicas.replica)

    def note_written(self) -> None:
        """Remember what stands in the optimiser as ours. Tensors are told by version, unread."""
        ownership.steer(self._optimizer, self)
        self._displaced = []
        self._written = [_token(h.read(self._optimizer)) for h in self._hyperparameters]

    def in_charge(self) -> bool:
        """Whether the optimiser still holds what was written last; does not wait for a device.

        Not so while another scheduler, of a SequentialLR or one that replaced this, or the user's
        own hand sets the values.
        """
        if ownership.steered_by(self._optimizer) is not self:
            return False
        try:
            found = [_token(h.read(self._optimizer)) for h in self._hyperparameters]
        except (IndexError, KeyError):  # a group is gone: the next step() says so
            return False
        return self._written == found

    def put_back(self, *, in_charge: bool) -> None:
        """Write ours over a checkpoint's, unless another scheduler drives this optimiser now."""
        steered_by = ownership.steered_by(self._optimizer)
        ours = steered_by is None or steered_by is self
        if in_charge or (ours and self._any_replica_stands_in_optimizer()):
            self.write_own()

    def take_charge(self, in_charge: bool) -> None:
        """Write our values, or let go: of the children of a SequentialLR one steers at a time."""
        if in_charge:
            self.write_own()
            return
        if self._displaced and self.in_charge():  # by us, who had not been told yet
            for hyperparameter, value in zip(self._hyperparameters, self._displaced, strict=True):
                hyperparameter.write(self._optimizer, value)
        self._written, self._displaced = [], []

    def guard_checkpoints(self) -> None:
        """An optimiser's checkpoint holds the values of whoever wrote it: put ours back."""
        hook = ownership.WeakMethod
        self._optimizer.register_load_state_dict_pre_hook(hook(self._before_load))
        self._optimizer.register_load_state_dict_post_hook(hook(self._after_load))

    def _before_load(self, *_: Any) -> None:
        self._owns_values = self.in_charge()

    def _after_load(self, *_: Any) -> None:
        found = [h.read(self._optimizer) for h in self._hyperparameters]
        found = [own.clone() if isinstance(own, torch.Tensor) else own for own in found]
        self.put_back(in_charge=self._owns_values)
        self._displaced = found

    def _any_replica_stands_in_optimizer(self) -> bool:
        """Whether it holds one replica's values, or the base ones: a checkpoint of ours, loaded."""
        found = [float(h.read(self._optimizer)) for h in self._hyperparameters]
        return any(
            all(
                math.isclose(own, float(value), rel_tol=1e-6)
                for own, value in zip(found, self.of(replica), strict=True)
            )
            for replica in (None, *range(self._replicas.num_replicas))
        )

    def control(self, step: int, losses: Sequence[float], trends_H: Sequence[Trend | None]) -> None:
        """Move each base value by what the replicas measured (Eqs. 4-8)."""
        start = self._controller.start_step
        if start is None or step < start or self.frozen:
            return
        self._take_over()
        heard = [replica for replica, loss in enumerate(losses) if math.isfinite(loss)]
        losses_R = torch.tensor([losses[replica] for replica in heard], dtype=torch.float64)
        values = [self.of(replica) for replica in heard]
        moved_H: list[float] = []
        bases = self.base if self._factors is None else self._factors
        for index, (base, trend) in enumerate(zip(bases, trends_H, strict=True)):
            values_R = torch.tensor([own[index] for own in values], dtype=torch.float64)
            evidence = Evidence(step, values_R, losses_R, trend)
            self._states[index], moved = self._controller.update(
                self._states[index], base, evidence
            )
            moved_H.append(self._bounded(index, moved))
        if self._factors is None:
            self._base = list(moved_H)
        else:
            self._factors = moved_H

    def starts_over(self) -> bool:
        """Whether the controller asks for a return to the last good point."""
        return any(map(self._controller.starts_over, self._states))

    def lower(self, factor: float, step: int) -> None:
        """All learning rates fall: the run has gone back to an earlier point."""
        bases = self.base if self._factors is None else self._factors
        for index, hyperparameter in enumerate(self._hyperparameters):
            if hyperparameter.rate_group is None:
                continue
            if self._factors is None and not self._controlled:
                self._lowered[index] *= factor
                continue
            self._states[index], moved = self._controller.roll_back(
                self._states[index], bases[index], lower=factor, step=step
            )
            bases[index] = self._bounded(index, moved)
        if self._factors is None and self._controlled:
            self._base = list(bases)

    def state_dict(self) -> dict[str, Any]:
        """Plain types, by name of the hyperparameter."""
        return {
            "controlled": self._controlled,
            "frozen": self.frozen,
            "hyperparameters": {
                h.name: {"base": base, **factor, **state}
                for h, base, factor, state in zip(
                    self._hyperparameters,
                    self.base,
                    self._factor_entries(),
                    self._states,
                    strict=True,
                )
            },
            "plan": self._plan.state_dict(),
        }

    def check_state(self, state: Any) -> None:
        """Raise if `load_state_dict` could not restore ``state``."""
        missing = {"controlled", "hyperparameters", "plan"} - set(state)
        if missing:
            raise InvalidValueError(
                f"state must be whole, got one without {sorted(missing)}; {checks.SAVED}"
            )
        checks.boolean("state['controlled']", state["controlled"])
        checks.boolean("state['frozen']", state.get("frozen", False))
        entries = checks.instance(
            "state['hyperparameters']", state["hyperparameters"], dict, remedy=checks.SAVED
        )
        names = [h.name for h in self._hyperparameters]
        if set(entries) != set(names):
            raise InvalidValueError(
                f"state must hold the hyperparameters {sorted(names)}, got "
                f"{checks.shown(list(entries))}; "
                "build the ensemble as it was when the state was saved"
            )
        for hyperparameter in self._hyperparameters:
            _check_entry(hyperparameter, entries[hyperparameter.name], self._controller.counts)
        self._plan.check_state(state["plan"])

    def load_state_dict(self, state: Any) -> None:
        """Restore. What another controller left out starts afresh, what it had more is dropped."""
        self.check_state(state)
        entries = [state["hyperparameters"][h.name] for h in self._hyperparameters]
        fresh = self._controller.init()
        self._plan.load_state_dict(state["plan"])
        self._states = [
            {key: float(entry.get(key, start)) for key, start in fresh.items()} for entry in entries
        ]
        self._base = [float(entry["base"]) for entry in entries]
        if self._factors is not None:
            self._factors = [
                float(entry.get("factor", start))
                for entry, start in zip(entries, self._factors, strict=True)
            ]
        self._lowered = [float(entry.get("lowered", 1.0)) for entry in entries]
        self._controlled = bool(state["controlled"]) and self._controller.start_step is not None
        self.frozen = bool(state.get("frozen", False))

    def _bounded(self, index: int, moved: float) -> float:
        """Where the controller has moved a value or its factor, as far as its bounds let it."""
        # The bounds are those of the value, which a schedule may still anneal below them.
        scale = 1.0 if self._factors is None else self._scales[index]
        low, high = (bound / scale for bound in self._hyperparameters[index].bounds)
        return min(max(moved, low), high)

    def _factor_entries(self) -> list[dict[str, float]]:
        if self._factors is None:
            return [{} if own == 1.0 else {"lowered": own} for own in self._lowered]
        return [{"factor": factor} for factor in self._factors]

    def _shaped(self, planned: Sequence[Value]) -> list[Value]:
        """The plan's values, times a relative controller's factors or what roll-backs left."""
        factors = self._lowered if self._factors is None else self._factors
        if all(own == 1.0 for own in factors):
            return list(planned)
        return [value * own for value, own in zip(planned, factors, strict=True)]

    def _take_over(self) -> None:
        """From S_warm on the base value is the controller's; it starts from the value in use."""
        if not self._controlled:
            self._base = list(self.base)
            self._controlled = True


def _token(value: Any) -> Any:
    """What tells a value from another without reading a tensor."""
    return (id(value), value._version) if isinstance(value, torch.Tensor) else value


def _check_entry(hyperparameter: AbstractHyperparameter, entry: Any, counts: Sequence[str]) -> None:
    """Raise if a hyperparameter's part of a state is not a base value and other numbers."""
    where = f"state of {hyperparameter.name}"
    checks.instance(where, entry, dict, remedy=checks.SAVED)
    for key, value in {"base": None, **entry}.items():
        is_rate = key == "base" and hyperparameter.rate_group is not None
        low = 0.0 if is_rate or key in counts or key == "factor" else -math.inf
        checks.real(f"{where}: {key}", value, low=low, remedy=checks.SAVED)
