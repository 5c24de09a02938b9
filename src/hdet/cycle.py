"""The cycle, and the only place that composes its stages.

::

    fan out -> T optimiser steps -> measure -> converge -> control -> reassign -> (next cycle)

"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hdet import arguments, checks, plan
from hdet.agreement import Agreement, settings
from hdet.assignment import Assignment
from hdet.averaging import Averaging
from hdet.controllers import AbstractController
from hdet.errors import UsageError
from hdet.fan_out import FanOut
from hdet.guard import Guard, Watch
from hdet.hyperparameters import AbstractHyperparameter
from hdet.ownership import WeakMethod
from hdet.plan import Value
from hdet.progress import Progress
from hdet.replicas import AbstractReplicas, resolve
from hdet.replicas.base import Steering
from hdet.roll_call import RollCall
from hdet.signals import AbstractSignal, Intake, Losses
from hdet.updates import Updates
from hdet.values import Values


class Ensemble:
    """N replicas that train with N values of each hyperparameter and become one every T steps.

    ``step(loss)`` follows each ``optimizer.step()``. All that is decided is computed from gathered
    numbers and keyed permutations, so every replica decides the same; the state holds no rank.

    With a spread of 0 everywhere, shared gradients and no controller it is switched off: it moves
    no tensor, draws no number and changes no value.

    Args:
        optimizer: any torch optimiser.
        hyperparameters: what varies, for example ``[hdet.LearningRate(0, spread_ratio=1/9)]``. The
            order numbers them for Eq. 9.
        model: if given, its floating-point buffers (BatchNorm's statistics) are averaged too.
        total_steps: S, the most steps that may be taken; None for no limit.
        schedule: planned values: None keeps the current ones, a ``step -> factor`` function scales
            them (`hdet.functional` has closed forms), a torch LRScheduler sets learning rates.
        signal: what a cycle measures; the training loss by default.
        controller: how base values move; by default they follow the schedule.
        cycle_steps: T, steps between two averagings.
        replicas: `hdet.DistributedReplicas` or `hdet.VirtualReplicas`; None means the default
            process group if there is one, else a single replica.
        seed: keys the permutations; the same on all replicas.
        guard: when to go back to the last good point, at lower rates; None is never.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        hyperparameters: Sequence[AbstractHyperparameter],
        model: torch.nn.Module | None = None,
        total_steps: int | None = None,
        schedule: plan.Schedule | None = None,
        signal: AbstractSignal | None = None,
        controller: AbstractController | None = None,
        cycle_steps: int = 1000,
        replicas: AbstractReplicas | None = None,
        seed: int = 0,
        guard: Guard | None = None,
    ) -> None:
        self.optimizer = self._built_on = arguments.checked_optimizer(optimizer)
        self.hyperparameters = arguments.checked_hyperparameters(hyperparameters, optimizer)
        self.model = arguments.checked_model(model)
        self.total_steps = arguments.checked_total_steps(total_steps)
        self.signal = arguments.checked_signal(signal)
        self.controller = arguments.checked_controller(controller)
        self.cycle_steps = arguments.checked_cycle_steps(cycle_steps)
        self.seed = checks.seed(seed)
        explores = any(h.spread_ratio > 0.0 for h in self.hyperparameters)
        self._controls = self.controller.start_step is not None
        self.replicas = resolve(replicas, explores=explores, controls=self._controls)
        self._num_replicas = self.replicas.num_replicas
        self._can_differ = explores or self.replicas.gradients == "local"
        self._plan = plan.resolve(schedule, optimizer, self.hyperparameters)
        self._assignment = Assignment(self.hyperparameters, self.num_replicas, self.seed)
        self._values = Values(
            optimizer,
            self.hyperparameters,
            self._plan,
            self.controller,
            self._assignment,
            self.replicas,
        )
        if self.averages and self._values.cycle_steps(0) is None:
            arguments.warn_of_long_cycle(self.cycle_steps, self.total_steps)
        self._step = self._converged_step = self._cycle = 0
        needed_by = self.controller if self._controls else None
        self._intake = Intake(self.signal, self.replicas.num_local, needed_by=needed_by)
        self._progress = Progress(self.replicas, self._intake)
        self._averaging = Averaging(optimizer, self.model, self.replicas, self._intake)
        self.guard = arguments.checked_guard(guard)
        self._updates = Updates(optimizer, self.replicas.gradients, self._intake)
        in_charge = WeakMethod(self._values.in_charge)
        self._watch = Watch(self.guard, optimizer, self.model, self.replicas, in_charge)
        self._agreement = Agreement(self.replicas, optimizer, settings(self, self._plan.describe()))
        self._fan_out = FanOut(self.replicas)
        self.replicas.attach(optimizer, self.model, self._steering(explores), owner=self)
        self._follow_gradients()
        self._cycle_end = self._begin_cycle()
        if self.averages:
            self._values.guard_checkpoints()
        self._values.write_own()

    # ------------------------------------------------------------------ what a user calls

    @property
    def num_replicas(self) -> int:
        """N."""
        return self._num_replicas

    @property
    def num_roll_backs(self) -> int:
        """How often the guard has gone back to an earlier point."""
        return self._watch.num_roll_backs

    @property
    def num_steps(self) -> int:
        """Optimiser steps taken so far."""
        return self._step

    @property
    def num_cycles(self) -> int:
        """Cycles that have ended so far."""
        return self._cycle

    @property
    def base_values(self) -> dict[str, float]:
        """The shared base value of each hyperparameter, by name; waits for the device."""
        return dict(zip((h.name for h in self.hyperparameters), self._values.base, strict=True))

    @property
    def controller_states(self) -> dict[str, dict[str, float]]:
        """What the controller keeps of each hyperparameter, by name: a copy; waits for nothing."""
        return self._values.controller_states()

    def replica_values(self, replica: int) -> dict[str, float]:
        """A replica's value of each hyperparameter (Eq. 1), by name, on any replica."""
        replica = arguments.checked_replica(replica, self.num_replicas)
        names = [h.name for h in self.hyperparameters]
        return {name: float(v) for name, v in zip(names, self._values.of(replica), strict=True)}

    @property
    def averages(self) -> bool:
        """Whether the replicas can come apart, so that converge has something to do."""
        return self._num_replicas > 1 and (self._can_differ or self.replicas.perturbed)

    @property
    def is_on(self) -> bool:
        """Whether anything differs from the plain schedule."""
        return self._controls or self.averages or self._watch.is_on

    def freeze(self) -> None:
        """Leave the base values to the schedule from now on; nothing is measured any more."""
        if self._values.frozen:
            return
        self._values.frozen = True
        self._intake.begin_cycle(0)

    def observe(self, loss: Losses) -> None:
        """Hand over a step's loss ahead of a bare ``step()``, where a trainer makes that call."""
        self._intake.take(loss, self._step)

    def step(self, loss: Losses | None = None) -> None:
        """Count one optimiser step; at the end of a cycle measure, converge, control and reassign.

        Args:
            loss: this replica's training loss; with virtual replicas one for each. Not waited for.
        """
        if isinstance(self._plan, plan.GivenPlan):
            raise UsageError(
                "ensemble.step() was called on a scheduler's ensemble; call scheduler.step(loss)"
            )
        if self.was_skipped(loss):
            return
        self.advance(loss)
        self._values.refresh(self._step)
        self._values.write_own()

    def converge(self) -> None:
        """Average now: at the end of a run whose length is no multiple of T, or for a checkpoint.

        All replicas must call it at the same step. It neither moves base values nor starts a new
        cycle, and moves nothing where the replicas are together already. What the processes have
        measured of the cycle so far is made known to all, so that `state_dict` can hold it.
        """
        self._fan_out.refuse_inside("converge()")
        if not self.is_on:
            return
        self._agree()
        self._progress.share(self._step, unite=self.averages)
        if self.averages and (self._step != self._converged_step or self.replicas.perturbed):
            self._converge(guarded=False)  # nothing that is not finite is saved, or a result

    def fan_out(self, batch: Any) -> Iterator[tuple[int, Any]]:
        """Yield ``(replica, micro_batch)``, with that replica's parameters in place meanwhile.

        Tensors, nested in tuples, lists and dicts, are split along dimension 0. Call
        ``(loss / ensemble.num_replicas).backward()`` inside the loop, ``optimizer.step()`` after
        it.
        """
        self._fan_out.refuse_inside("fan_out()")
        return self._fan_out.over(batch)

    def state_dict(self) -> dict[str, Any]:
        """The whole state, of plain types and tensors, the same on every replica.

        Call `converge` first, on all replicas. A run that is resumed is then, to the last bit, the
        run that has converged at this step and gone on, inside a cycle too.
        """
        if self.is_on:
            self._progress.warn_of_loss(self._step, self._converged_step, apart=self.averages)
        return {
            "version": arguments.STATE_VERSION,
            "step": self._step,
            "converged_step": self._converged_step if self.averages else self._step,
            "cycle": self._cycle,
            "cycle_end": self._cycle_end,
            "num_replicas": self.num_replicas,
            "in_charge": self._values.in_charge(),
            "signal": self.signal.state_dict(),
            "guard": self._watch.state_dict(),
            "cycle_so_far": self._progress.state(self._step, alike=not self.averages),
            **self._values.state_dict(),
        }

    def load_state_dict(self, state: Any) -> None:
        """Restore what `state_dict` returned, on any replica and at any number of them.

        Writes this replica's own values if they stood in the optimiser when the state was saved. A
        state that does not say so writes them unless another scheduler drives the optimiser now.
        """
        self._fan_out.refuse_inside("load_state_dict()")
        self.check_state(state)
        in_charge = self._values.in_charge()
        self._values.load_state_dict(state)
        # A state that goes on at another number of replicas lets all of them start at one point.
        same = state.get("num_replicas", self.num_replicas) == self.num_replicas
        self._jump(int(state["step"]), int(state["converged_step" if same else "step"]))
        if self._values.cycle_steps(self._step) is not None and "cycle_end" in state:
            # The controller chose it; a T of the ensemble's own may have been changed since.
            self._cycle, self._cycle_end = int(state["cycle"]), int(state["cycle_end"])
            self._assignment.draw(self._cycle)
        self.signal.load_state_dict(state.get("signal", {}))
        self._watch.load_state_dict(state.get("guard", {}))
        self._progress.load(state, self._step)
        if "in_charge" in state:
            self._values.take_charge(state["in_charge"])
        else:
            self._values.put_back(in_charge=in_charge)

    def check_state(self, state: Any) -> None:
        """Raise, without changing anything, if `load_state_dict` could not restore ``state``."""
        arguments.check_header(state, counts_cycles=self.is_on)
        self.signal.check_state(arguments.part_of(state, "signal"))
        self._watch.check_state(state.get("guard", {}))
        self._progress.check_state(state)
        self._values.check_state(state)

    # ------------------------------------------------------------------ what a scheduler calls

    def was_skipped(self, loss: Losses | None) -> bool:
        """Whether the step that is to be counted did not happen, for its gradients overflowed."""
        self._fan_out.refuse_inside("step()")
        arguments.check_still_there(self.optimizer, self._built_on, self.hyperparameters)
        arguments.check_not_over(self._step, self.total_steps)
        return self.is_on and self._updates.was_skipped(loss, self._step)

    def advance(self, loss: Losses | None = None) -> None:
        """All of `step` that follows `was_skipped` but the values of the coming one."""
        self._agree()
        self._intake.receive(loss, self._step, is_on=self.is_on)
        self._watch.note(loss)
        self._step += 1
        if self._step == self._cycle_end:
            self._end_cycle()

    def local_values(self, given: Sequence[Value]) -> list[Value]:
        """This process's values for the coming step, around the planned ones that are given."""
        assert isinstance(self._plan, plan.GivenPlan)
        self._plan.given = list(given)
        self._values.refresh(self._step)
        return self._values.of(self.replicas.replica)

    def own_values(self) -> list[Value]:
        """This process's values, wherever they stand."""
        return self._values.of(self.replicas.replica)

    def adopt(self, step: int, given: Sequence[Value]) -> None:
        """Go on where a plain scheduler's checkpoint stands."""
        in_charge = self._values.in_charge()
        self.seek(step, given)
        self._values.put_back(in_charge=in_charge)

    def seek(self, step: int, given: Sequence[Value]) -> None:
        """Jump to a step without living through it, as a scheduler does that starts again."""
        assert isinstance(self._plan, plan.GivenPlan)
        self._plan.given = list(given)
        self._values.seek(step)
        self._jump(step, step)

    def note_written(self) -> None:
        """The scheduler has written `local_values` into the optimiser."""
        self._values.note_written()

    # ------------------------------------------------------------------ the end of a cycle

    def _end_cycle(self) -> None:
        if self.is_on:
            self._judge_cycle()
        self._cycle += 1
        self._cycle_end = self._begin_cycle()

    def _judge_cycle(self) -> None:
        is_on, step = self._watch.is_on, self._step
        answers = self._converge(is_on) if self.averages else self._averaging.measure(step, is_on)
        if self._watch.is_bad(answers, self._step):
            self._roll_back("the loss has risen, or nothing is finite any more")
        else:
            trends_H = self._averaging.trends(answers, self.hyperparameters)
            self._values.control(self._step, answers.losses, trends_H)
            if self._watch.may_go_back and self._values.starts_over():
                self._roll_back("the rate began too high")

    def _begin_cycle(self) -> int:
        """Deal the cycle's multipliers and start measuring; return the step at which it ends."""
        # Once frozen, cycles only have to end where there is something to average.
        is_over = self._values.frozen and not (self.averages or self._watch.is_on)
        wanted = None if is_over else self._values.cycle_steps(self._step)
        if wanted is None:
            wanted = self.cycle_steps - self._step % self.cycle_steps
        self._assignment.draw(self._cycle)
        self._intake.begin_cycle(0 if self._values.frozen else wanted)
        return self._step + wanted

    def _converge(self, guarded: bool) -> RollCall:
        answers = self._averaging.converge(self._step, guarded)
        self._converged_step = self._step
        return answers

    def _roll_back(self, reason: str) -> None:
        self._watch.roll_back(self._step, reason)
        self.signal.forget()
        self._values.lower(self._watch.lower, self._step)

    # ------------------------------------------------------------------ small parts

    def _steering(self, explores: bool) -> Steering:
        return Steering(
            rate_multiplier=self._assignment.rate_multiplier,
            activate=WeakMethod(self._values.write),
            in_charge=WeakMethod(self._values.in_charge),
            only_rates=all(h.rate_group is not None for h in self.hyperparameters),
            explores=explores,
        )

    def _follow_gradients(self) -> None:
        arguments.check_signal_serves(self.signal, self.controller, self.optimizer)
        groups = [h.rate_group for h in self.hyperparameters if h.rate_group is not None]
        num_processes = self.num_replicas // self.replicas.num_local
        self.signal.attach(self.optimizer, groups, WeakMethod(self._values.rate), num_processes)

    def _agree(self) -> None:
        if not self._agreement.settled:
            self._agreement.settle(is_on=self.is_on, step=self._step, base=self._values.base)

    def _jump(self, step: int, converged_step: int) -> None:
        self._step, self._converged_step = step, converged_step
        self._cycle = step // self.cycle_steps
        self._intake.reset(0)
        self._watch.reset()
        self._progress.forget()
        self.replicas.reset()
        self._cycle_end = self._begin_cycle()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "in_charge": self._values.in_charge()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        in_charge = state.pop("in_charge")
        self.__dict__.update(state)
        if self.averages:  # a pickled optimiser comes back without its hooks
            self._values.guard_checkpoints()
        if in_charge:  # tensors are told by their identity, which is another in a copy
            self._values.note_written()
