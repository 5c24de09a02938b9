"""`optimizer.step(closure)`, as trainers call it: the signal sees the gradients of that step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hdet
from hdet import optimizers
from tests.auto import OPTIMIZERS, Run, loss_of


class Stepper(Run):
    """A run whose closure clears, evaluates and is counted."""

    def __init__(self, total_steps: int = 200, kind: str = "AdamW", **settings: Any) -> None:
        super().__init__(total_steps, kind, **settings)
        self.num_evaluations = 0

    def closure_at(self, step: int) -> Callable[[], torch.Tensor]:
        def closure() -> torch.Tensor:
            self.num_evaluations += 1
            assert torch.is_grad_enabled()
            self.optimizer.zero_grad()
            loss = loss_of(self.model, step)
            loss.backward()
            return loss.detach()

        return closure

    def walk(self, how: str, steps: range) -> list[float]:
        rates = []
        for step in steps:
            closure = self.closure_at(step)
            if how == "bare":
                closure()
                self.optimizer.step()
            elif how == "positional":
                assert float(self.optimizer.step(closure)) >= 0.0
            else:
                with torch.no_grad():  # a trainer may
                    assert float(self.optimizer.step(closure=closure)) >= 0.0
            self.scheduler.step()
            rates += self.scheduler.get_last_lr()
        return rates


KINDS = [kind for kind in OPTIMIZERS if kind != "Orthogonal"]  # which ignores its closure


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["positional", "keyword"])
def test_a_closure_leads_to_the_same_rates_as_a_bare_step(kind: str, how: str) -> None:
    bare, closed = Stepper(kind=kind), Stepper(kind=kind)
    assert closed.walk(how, range(200)) == bare.walk("bare", range(200))
    assert torch.equal(closed.point(), bare.point())
    assert closed.num_evaluations == bare.num_evaluations == 200


def test_gradients_of_the_last_step_would_lead_elsewhere() -> None:
    """Negative control: what hooks see when the closure is left to the step."""
    bare, closed = Stepper(), Stepper()
    for key, hook in list(closed.optimizer._optimizer_step_pre_hooks.items()):
        if inspect.isfunction(hook):
            del closed.optimizer._optimizer_step_pre_hooks[key]
    assert closed.walk("positional", range(200)) != bare.walk("bare", range(200))


def test_a_copy_does_so_too() -> None:
    run = Stepper()
    run.walk("positional", range(60))
    clone = copy.deepcopy(run)
    expected = run.walk("bare", range(60, 120))
    assert clone.walk("positional", range(60, 120)) == expected


class Twice(torch.optim.SGD):
    """Steps from the second evaluation, as sharpness-aware methods do, through its parent."""

    def step(self, closure: Any = None) -> Any:
        first = closure()
        with torch.no_grad():
            self.param_groups[0]["params"][0].add_(0.01)
        with torch.enable_grad():
            assert float(closure()) != float(first)
        super().step()
        return first


def test_further_evaluations_are_real_ones() -> None:
    run = Stepper()
    run.optimizer = Twice(run.model.parameters(), lr=0.1)
    run.scheduler = hdet.AutoLR(run.optimizer, 200)
    run.walk("positional", range(10))
    assert run.num_evaluations == 20


def test_only_lbfgs_of_torchs_needs_a_closure() -> None:
    kinds = [own for own in vars(torch.optim).values() if inspect.isclass(own)]
    found = []
    for kind in kinds:
        if issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer:
            made = kind([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1)
            found += [kind.__name__] if optimizers.needs_closure(made) else []
    assert found == ["LBFGS"]
