"""Becoming one: who is sound, and then the mean over those (Eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hdet import optimizers
from hdet.converge import Selection, converge_, select, share_
from hdet.hyperparameters import AbstractHyperparameter
from hdet.replicas import AbstractReplicas
from hdet.roll_call import RollCall, report_bad, roll_call
from hdet.signals import Intake, Trend


class Averaging:
    """Asks every replica where it stands, and averages what they hold.

    Args:
        optimizer: whose parameters, and state where it differs, become one.
        model: whose buffers do; None leaves buffers alone.
        replicas: who takes part.
        intake: what each of them measured.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        replicas: AbstractReplicas,
        intake: Intake,
    ) -> None:
        self._optimizer = optimizer
        self._model = model
        self._replicas = replicas
        self._intake = intake
        self._note_trained()

    def measure(self, step: int, guarded: bool) -> RollCall:
        """What the replicas measured; nothing is averaged. Guarded, parameters are looked at."""
        if not guarded:
            return self._roll_call(step, None)
        with torch.no_grad():
            return self._roll_call(step, select(self._optimizer, self._model, self._trained))

    def converge(self, step: int, guarded: bool) -> RollCall:
        """Eq. 3 over the sound replicas; return what they measured, as `measure` does.

        Where none is sound it raises or, guarded, leaves them as they are.
        """
        with torch.no_grad(), torch.profiler.record_function("hdet.converge"):
            selection = select(self._optimizer, self._model, self._trained)
            answers = self._roll_call(step, selection)
            if guarded and not any(answers.valid):
                return answers
            report_bad(answers.valid, step)
            converge_(selection, self._replicas, answers.valid, include_state=answers.include_state)
            # Each replica's signal has followed its own path: from here on there is one.
            memory = self._intake.signal.memory()
            device = optimizers.parameters(self._optimizer)[0].device
            share_(memory, self._replicas, answers.valid, device)
        self._note_trained()
        return answers

    def trends(
        self, answers: RollCall, hyperparameters: Sequence[AbstractHyperparameter]
    ) -> list[Trend | None]:
        """What the signal says of each hyperparameter; None of those that are no learning rate."""
        independent = self._replicas.gradients == "local"
        found = self._intake.signal.trends(answers.statistics, independent=independent)
        own = iter(found or ())
        return [next(own, None) if h.rate_group is not None else None for h in hyperparameters]

    def _roll_call(self, step: int, selection: Selection | None) -> RollCall:
        return roll_call(
            self._replicas, self._intake, self._optimizer, step=step, selection=selection
        )

    def _note_trained(self) -> None:
        """One that is frozen from now on still has to be averaged once."""
        self._trained = {p for p in optimizers.parameters(self._optimizer) if p.requires_grad}
