"""Where a probe's batches stand is part of the state: a run that is resumed judges by the same."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.errors import HDETError
from tests.auto import loss_of, optimizer_of
from tests.test_auto_lr_state import through_a_file

S = 72
SEEDS = list(range(9000, 9007))


class Loader:
    """An iterable that is no sequence and has no length."""

    def __iter__(self) -> Iterator[int]:
        yield from SEEDS


def shuffled() -> torch.utils.data.DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    return torch.utils.data.DataLoader(
        SEEDS, batch_size=None, shuffle=True, generator=generator, collate_fn=int
    )


def forever() -> Iterator[int]:
    """A generator, which a new process builds anew."""
    yield from SEEDS * 20


SOURCES: dict[str, Callable[[], Any]] = {
    "a list": lambda: list(SEEDS),
    "an iterable": Loader,
    "a shuffled loader": shuffled,
    "a generator": forever,
}


class Probed:
    """A run with dropout that is probed every few steps, soon after its start."""

    def __init__(self, source: str) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)]
        self.model = nn.Sequential(*layers).double()
        self.optimizer = optimizer_of(self.model)
        probe = hdet.Probe(lambda seed: loss_of(self.model, seed), SOURCES[source]())
        controller = hdet.LongHorizonController(
            start_value=1e-3, climb_end=8, settle=1.0, doubt=20.0, cycle_growth=0.0, cycle_steps=11
        )
        signal = hdet.PairedProbe(probe, num_pairs=3)
        self.scheduler = hdet.AutoLR(
            self.optimizer, S, anneal=0.1, controller=controller, signal=signal
        )

    def train(self, steps: range) -> list[float]:
        rates = []
        for step in steps:
            loss_of(self.model, step).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            rates.append(self.scheduler.get_last_lr()[0])
        return rates

    def state(self) -> dict[str, Any]:
        parts = (self.model, self.optimizer, self.scheduler)
        return {"own": [part.state_dict() for part in parts], "random": torch.get_rng_state()}

    def load(self, state: dict[str, Any]) -> None:
        parts = (self.model, self.optimizer, self.scheduler)
        for part, own in zip(parts, state["own"], strict=True):
            part.load_state_dict(own)
        torch.set_rng_state(state["random"])

    def point(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1).clone() for p in self.model.parameters()])


def whole(source: str) -> tuple[list[dict[str, Any]], list[float], torch.Tensor]:
    """The state before each step, the rate after it, and the end of an uninterrupted run."""
    run = Probed(source)
    states, rates = [], []
    for step in range(S):
        states.append(copy.deepcopy(run.state()))
        rates += run.train(range(step, step + 1))
    return states, rates, run.point()


@pytest.mark.parametrize("source", SOURCES)
def test_a_run_that_stops_anywhere_goes_on_as_if_it_had_not(source: str) -> None:
    states, rates, end = whole(source)
    drawn = [state["own"][2]["ensemble"]["signal"]["num_drawn"] for state in states]
    assert drawn[0] == 0
    assert drawn[-1] > 2 * len(SEEDS), "the batches have started again twice"
    for stop in range(0, S, 1 if source == "a list" else 3):
        resumed = Probed(source)
        resumed.load(through_a_file(states[stop]))
        assert resumed.train(range(stop, S)) == rates[stop:], stop
        assert torch.equal(resumed.point(), end)


@pytest.mark.parametrize("source", SOURCES)
def test_from_the_first_batch_it_is_another_run(source: str) -> None:
    """Negative control, and the states of before there was a place in them: they still load."""
    states, rates, end = whole(source)
    stop = S // 3
    state = states[stop]
    drawn = state["own"][2]["ensemble"]["signal"].pop("num_drawn")
    assert drawn % len(SEEDS), "another batch would come next"
    resumed = Probed(source)
    resumed.load(state)
    assert resumed.train(range(stop, S)) != rates[stop:]
    assert not torch.equal(resumed.point(), end)


@pytest.mark.parametrize("source", ["a list", "an iterable"])
def test_a_roll_back_inside_a_run_goes_back_in_the_batches(source: str) -> None:
    run = Probed(source)
    run.train(range(20))
    state = copy.deepcopy(run.state())
    expected = run.train(range(20, S))
    run.load(state)
    assert run.train(range(20, S)) == expected


def draws(batches: Any, num_drawn: int) -> list[Any]:
    probe = hdet.Probe(abs, batches)
    probe.seek(num_drawn)
    assert probe.num_drawn == num_drawn
    return [probe.draw() for _ in range(4)]


@pytest.mark.parametrize(
    ("num_drawn", "expected"), [(0, [1, 2, 3, 1]), (2, [3, 1, 2, 3]), (6, [1, 2, 3, 1])]
)
def test_the_place_counts_over_restarts(num_drawn: int, expected: list[int]) -> None:
    assert draws([1, 2, 3], num_drawn) == expected
    assert draws(dict.fromkeys([1, 2, 3]), num_drawn) == expected


def test_a_sequence_is_not_loaded_again() -> None:
    loaded = []

    class Lazy(list[int]):
        def __getitem__(self, index: Any) -> Any:
            loaded.append(index)
            return super().__getitem__(index)

    assert draws(Lazy([1, 2, 3, 4, 5]), 1_000_001) == [2, 3, 4, 5]
    assert loaded == [1, 2, 3, 4]


def test_skipping_draws_nothing_from_torchs_generator() -> None:
    class Random(Loader):
        def __iter__(self) -> Iterator[float]:  # type: ignore[override]
            while True:
                yield float(torch.rand(()))

    torch.manual_seed(3)
    plain = hdet.Probe(abs, Random())
    expected = [plain.draw() for _ in range(2)]
    torch.manual_seed(3)
    probe = hdet.Probe(abs, Random())
    probe.seek(7)
    assert [probe.draw() for _ in range(2)] == expected


def test_a_stream_goes_on_where_it_is() -> None:
    probe = hdet.Probe(abs, iter(range(20)))
    assert [probe.draw() for _ in range(5)] == [0, 1, 2, 3, 4]
    probe.seek(2)  # it cannot go back
    assert probe.draw() == 5
    probe.seek(6)
    assert probe.draw() == 9


def test_batches_that_are_gone_say_so() -> None:
    probe = hdet.Probe(abs, iter(range(3)))
    probe.seek(5)
    with pytest.raises(HDETError, match="rather than a generator"):
        probe.draw()
    empty = hdet.Probe(abs, [])
    empty.seek(5)
    with pytest.raises(HDETError, match="at least one batch"):
        empty.draw()


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_copy_goes_on_where_the_original_stands(how: Any) -> None:
    probe = hdet.Probe(abs, [1, 2, 3])
    probe.draw()
    clone = how(probe)
    assert [clone.draw(), clone.draw(), clone.draw()] == [2, 3, 1]
    assert probe.draw() == 2


@pytest.mark.parametrize("num_drawn", [-1, None, 1.5])
def test_a_place_that_is_none_is_refused(num_drawn: Any) -> None:
    run = Probed("a list")
    state = copy.deepcopy(run.scheduler.state_dict())
    state["ensemble"]["signal"]["num_drawn"] = num_drawn
    with pytest.raises(HDETError, match=r"'num_drawn'. must be an integer"):
        run.scheduler.load_state_dict(state)
