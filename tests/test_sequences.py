"""Several of our schedulers in one `SequentialLR`: stopped, gone on with, rolled back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hdet
from tests import training
from tests.test_auto_lr_state import through_a_file

MILESTONE, END = 12, 30


def exploring(optimizer: torch.optim.Optimizer) -> hdet.OneCycleLR:
    return hdet.OneCycleLR(
        optimizer,
        0.3,
        total_steps=40,
        spread_ratio=0.3,
        cycle_steps=4,
        cycle_momentum=False,
        replicas=hdet.VirtualReplicas(3),
    )


KINDS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "auto": lambda optimizer: hdet.AutoLR(optimizer, 40, anneal=0.5),
    "exploring": exploring,
    "plain": lambda optimizer: hdet.OneCycleLR(
        optimizer, 0.2, total_steps=40, cycle_momentum=False
    ),
    "torch's": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, 0.9, total_iters=20),
}
ORDERS = {"optimizer first": (0, 1, 2), "scheduler first": (0, 2, 1)}


class Chained:
    """A model, its optimiser and a sequence of two schedulers."""

    def __init__(self, first: str, second: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2).double()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.children = [KINDS[kind](self.optimizer) for kind in (first, second)]
        self.chain = lr_scheduler.SequentialLR(self.optimizer, list(self.children), [MILESTONE])

    def active(self, step: int) -> Any:
        return self.children[step >= MILESTONE]

    def train(self, steps: range) -> list[Any]:
        """Each step's rate, and where each replica stood in it."""
        seen = []
        for step in steps:
            seen.append(self.optimizer.param_groups[0]["lr"])
            x = torch.randn(9, 3, generator=torch.Generator().manual_seed(step)).double()
            ensemble = getattr(self.active(step), "ensemble", None)
            parts = [(0, x)] if ensemble is None else ensemble.fan_out(x)
            share = 1 if ensemble is None else ensemble.num_replicas
            for _, part in parts:
                seen.append(training.flat(self.model).tolist())
                (self.model(part).pow(2).mean() / share).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.chain.step()
        return seen

    def saved(self) -> list[dict[str, Any]]:
        for child in self.children:
            if hasattr(child, "ensemble"):
                child.converge()
        state = {"parts": [part.state_dict() for part in self.parts()]}
        found: list[dict[str, Any]] = through_a_file(state)["parts"]
        return found

    def parts(self) -> tuple[Any, ...]:
        return self.model, self.optimizer, self.chain

    def load(self, state: list[dict[str, Any]], order: str) -> None:
        for index in ORDERS[order]:
            self.parts()[index].load_state_dict(copy.deepcopy(state[index]))


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_sequence_goes_on_from_any_step(first: str, second: str, order: str) -> None:
    for stop in (0, 7, 11, 12, 13, 24):
        whole = Chained(first, second)
        whole.train(range(stop))
        state = whole.saved()
        expected = whole.train(range(stop, END))
        resumed = Chained(first, second)
        resumed.load(state, order)
        assert resumed.train(range(stop, END)) == expected, stop


@pytest.mark.parametrize("second", ["auto", "exploring"])
@pytest.mark.parametrize("first", ["auto", "exploring"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("stop", "until"), [(7, 10), (7, 20), (15, 20)])
def test_a_sequence_rolls_back_into_either_phase(
    first: str, second: str, order: str, stop: int, until: int
) -> None:
    run = Chained(first, second)
    run.train(range(stop))
    state = run.saved()
    run.train(range(stop, until))
    run.load(state, order)
    resumed = Chained(first, second)
    resumed.load(state, order)
    assert run.train(range(stop, END)) == resumed.train(range(stop, END))


def test_a_state_that_does_not_say_who_was_in_charge_starts_at_the_firsts() -> None:
    """Negative control: states of before, whose first step after a resume is at another rate."""
    whole = Chained("exploring", "auto")
    whole.train(range(19))
    state = whole.saved()
    for own in state[2]["_schedulers"]:
        del own["ensemble"]["in_charge"]
    resumed = Chained("exploring", "auto")
    resumed.load(state, "optimizer first")
    expected = whole.train(range(19, 20))
    assert resumed.train(range(19, 20))[0] != expected[0]


def test_a_rate_set_by_hand_before_a_checkpoint_stands_after_it() -> None:
    def build() -> tuple[torch.optim.Optimizer, hdet.OneCycleLR]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=torch.tensor(0.1))
        return optimizer, exploring(optimizer)

    optimizer, scheduler = build()
    with torch.no_grad():
        optimizer.param_groups[0]["lr"].fill_(0.07)
    state = [copy.deepcopy(own.state_dict()) for own in (optimizer, scheduler)]
    for order in (0, 1), (1, 0):
        parts = build()
        for index in order:
            parts[index].load_state_dict(copy.deepcopy(state[index]))
        assert float(parts[0].param_groups[0]["lr"]) == pytest.approx(0.07)
