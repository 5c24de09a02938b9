"""What a cycle has measured so far: gathered for a checkpoint, and given back by one."""

from __future__ import annotations

import logging
from typing import Any

import torch

from hdet import agreement, checks, tensors
from hdet.converge.buckets import average_
from hdet.errors import warn
from hdet.replicas import AbstractReplicas
from hdet.signals import Intake

logger = logging.getLogger("hdet")


class Progress:
    """Each process's part of the cycle so far, known to all of them at the step of a `share`.

    A state is the same from every replica, so what each measured on its own is in it only once all
    have told it. With all replicas in one process there is nothing to tell.

    Args:
        replicas: who takes part.
        intake: what is measured here.
    """

    def __init__(self, replicas: AbstractReplicas, intake: Intake) -> None:
        self._replicas = replicas
        self._intake = intake
        self._num_processes = replicas.num_replicas // replicas.num_local
        self._shared: list[dict[str, Any]] = []
        self._step = -1
        self._warned = False

    def is_known(self, step: int) -> bool:
        """Whether this process knows what all have measured up to ``step``."""
        return self._num_processes == 1 or self._step == step

    def warn_of_loss(self, step: int, converged_step: int, *, apart: bool) -> None:
        """Warn, once, if a state saved now would not be all of the run.

        Args:
            step: steps taken so far.
            converged_step: those at the last converge.
            apart: whether the replicas can come apart.
        """
        if self._warned:
            return
        own = self._intake.has_own() or (apart and bool(self._intake.signal.memory()))
        if apart and step > converged_step:
            self._warned = True
            warn(
                f"state_dict() at step {step}, {step - converged_step} steps after the last "
                "converge: the replicas' parameters differ, and a checkpoint of one of them is not "
                "the ensemble; call converge() first"
            )
        elif own and not self.is_known(step):
            self._warned = True
            warn(
                f"state_dict() at step {step}: what each process has measured on its own is not in "
                "it, and a run that is resumed measures it again; call converge() first, on all "
                "replicas"
            )

    def share(self, step: int, *, unite: bool) -> None:
        """Tell it to each other, and make one of what the signals remember beyond a cycle.

        Args:
            step: steps taken so far, which must agree.
            unite: whether the processes' memories can differ.
        """
        if self.is_known(step):
            return
        memory = self._intake.signal.memory() if unite else []
        device = memory[0].device if memory else torch.device("cpu")
        sound = bool(tensors.all_finite(memory, device))
        own = {"step": step, "sound": sound, **self._intake.state_dict()}
        everyone = self._replicas.gather_objects(own)
        agreement.check_same("the number of steps taken", [one.pop("step") for one in everyone])
        counts = [bool(one.pop("sound")) for one in everyone]
        if memory and any(counts):
            # One that holds NaN takes the others' memory, as it takes their parameters.
            weight = int(counts[self._own])
            with torch.no_grad():
                average_(memory, self._replicas.all_reduce, weight=weight, total=sum(counts))
            kept = [one for one, is_sound in zip(everyone, counts, strict=True) if is_sound]
            self._intake.signal.agree([one["signal"] for one in kept])
        self._shared, self._step = everyone, step

    def state(self, step: int, *, alike: bool) -> list[dict[str, Any]]:
        """One entry for each process; what all of them see alike, once; or nothing.

        Args:
            step: steps taken so far.
            alike: whether the processes stand at the same point.
        """
        if self._num_processes == 1:
            return [self._intake.state_dict()]
        if self._step == step:
            return self._shared
        return [self._intake.common_state()] if alike else []

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise, without changing anything, if `load` could not restore an ensemble's state."""
        entries = state.get("cycle_so_far", [])
        checks.instance("state['cycle_so_far']", entries, list, remedy=checks.SAVED)
        for entry in entries:
            checks.instance("an entry of state['cycle_so_far']", entry, dict, remedy=checks.SAVED)
        if self._fits(entries, self._saved_size(state)):
            self._intake.check_state(entries[self._own])
        elif entries:
            self._intake.check_common_state(entries[0])

    def load(self, state: dict[str, Any], step: int) -> None:
        """Restore this process's own entry; of a run of another size what all saw alike."""
        entries = state.get("cycle_so_far", [])
        num_replicas = self._saved_size(state)
        if self._fits(entries, num_replicas):
            self._intake.load_state_dict(entries[self._own])
            self._shared, self._step = entries, step
        elif entries:
            self._intake.load_common_state(entries[0])
        if num_replicas != self._replicas.num_replicas:
            lost = any(entry.get("num_observed") for entry in entries)
            self._report(num_replicas, step, lost=lost)

    def forget(self) -> None:
        """The run goes on at another step."""
        self._shared, self._step = [], -1

    @property
    def _own(self) -> int:
        """This process's place among the entries; asked anew, so that nothing holds a rank."""
        return 0 if self._num_processes == 1 else self._replicas.replica or 0

    def _saved_size(self, state: dict[str, Any]) -> int:
        return int(state.get("num_replicas", self._replicas.num_replicas))

    def _fits(self, entries: list[dict[str, Any]], num_replicas: int) -> bool:
        same_size = num_replicas == self._replicas.num_replicas
        return same_size and len(entries) == self._num_processes

    def _report(self, num_replicas: int, step: int, *, lost: bool) -> None:
        logger.log(
            logging.WARNING if lost else logging.INFO,
            "step %d: a state of %d replicas goes on at %d; re-derived: multipliers and "
            "permutations%s; kept: base values, the controller's state and the signal's",
            step,
            num_replicas,
            self._replicas.num_replicas,
            ", and the cycle's losses so far start again" if lost else "",
        )
