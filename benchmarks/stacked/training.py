"""One pass: all lanes of one seed, from the first step to the loss at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks import contestants
from benchmarks.contestants import Contestant
from benchmarks.runs import DIVERGED, alone, recorded_steps, short
from benchmarks.stacked.stack import Engine, Stack
from benchmarks.stacked.task import Gpt, for_lanes

Say = Callable[[str], None]


class Clock:
    """The time that is left of an allowance.

    Args:
        max_seconds: the allowance, from now on.
    """

    def __init__(self, max_seconds: float = math.inf) -> None:
        self._start = time.monotonic()
        self.max_seconds = max_seconds

    @property
    def spent(self) -> float:
        """Seconds since the clock was made."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds of the allowance that remain; negative once it is overdrawn."""
        return self.max_seconds - self.spent


class Outcome(NamedTuple):
    """What came of a pass."""

    results: dict[str, dict[str, Any]]
    """By contestant, as `runs.train` gives it; without ``validation`` if it was cut short."""
    is_complete: bool
    seconds: float
    pace: float
    """Seconds a step."""


class Member:
    """A lane, the contestant that steps it, and what is written down of it."""

    def __init__(self, name: str, stack: Stack, index: int, task: Gpt, seed: int) -> None:
        self.name = name
        self.lane = stack.lanes[index]
        self.contestant: Contestant = contestants.build(name, for_lanes(task), self.lane, seed)
        self.curve: list[list[Any]] = []
        self.failure: str | None = None

    def follow(self, loss: torch.Tensor) -> None:
        """The contestant's own step; one that raises is out, and the others go on."""
        if self.failure is not None:
            return
        self.lane.take_gradients()
        try:
            self.contestant.after_backward(loss)
        except Exception as error:  # of whatever optimiser
            self.failure = f"{type(error).__name__}: {error}"

    def note(self, step: int, loss: float) -> None:
        """A point of the curve, which ends where the loss does."""
        if math.isfinite(loss) and self.failure is None:
            rates = [short(rate) for rate in self.contestant.rates]
            self.curve.append([step, short(loss), alone(rates)])


def train(
    task: Gpt, seed: int, names: Sequence[str], engine: Engine, clock: Clock, say: Say
) -> Outcome:
    """Train all of them on the same batches from the same weights.

    A pass that would outlast the clock is given up as soon as that is seen.
    """
    torch.manual_seed(seed)
    stack = Stack(task.build(), len(names), engine.device)
    members = [Member(name, stack, index, task, seed) for index, name in enumerate(names)]
    start = time.perf_counter()
    done = _steps(task, seed, stack, members, engine, clock, say)
    is_complete = done == task.total_steps
    for member in members:
        if member.failure is not None:
            say(f"{task.name} seed {seed}: {member.name} failed with {member.failure}")
    seconds = time.perf_counter() - start
    share = round(seconds / len(names), 2)
    results: dict[str, dict[str, Any]] = {
        m.name: {"seconds": share, "total_steps": task.total_steps, "curve": m.curve}
        for m in members
    }
    if is_complete:
        for member in members:
            if member.failure is None:
                member.contestant.finish()
        losses = dict(zip(names, stack.validate(task.held_out()), strict=True))
        for member in members:
            loss = losses[member.name]
            if member.failure is not None and math.isfinite(loss):
                del results[member.name]  # it has not diverged: something is wrong with it
                continue
            found = float(f"{loss:.8g}") if math.isfinite(loss) else DIVERGED
            results[member.name] = {"validation": found, **results[member.name]}
    return Outcome(results, is_complete, seconds, seconds / done)


def _steps(
    task: Gpt,
    seed: int,
    stack: Stack,
    members: Sequence[Member],
    engine: Engine,
    clock: Clock,
    say: Say,
) -> int:
    """All steps, or as many as were taken until it was seen that the clock does not let them."""
    total = task.total_steps
    starts = torch.stack([task.starts(step, seed) for step in range(total)]).to(engine.device)
    history_SC = torch.zeros(total, len(members), device=engine.device)
    points, last, last_time = set(recorded_steps(total)), 0, time.perf_counter()
    for step in range(total):
        losses_C = engine.losses(stack.params, task.windows(starts[step]))
        stack.backward(losses_C)
        if task.clip is not None:
            stack.clip_(task.clip)
        history_SC[step] = losses_C.detach()
        for member, loss in zip(members, history_SC[step].unbind(), strict=True):
            member.follow(loss)
        done = step + 1
        if done not in points:
            continue
        means = history_SC[last:done].mean(dim=0).tolist()  # waits for the device
        for member, mean in zip(members, means, strict=True):
            member.note(done, mean)
        now = time.perf_counter()
        pace = (now - last_time) / (done - last)
        last, last_time = done, now
        if done >= total / 20:
            say(_progress(task, seed, done, pace, members, means))
        if done >= total / 20 and (total - done) * pace > clock.left:
            say(f"given up: {(total - done) * pace:.0f} s to go, {clock.left:.0f} s left")
            return done
    return total


def _progress(
    task: Gpt, seed: int, done: int, pace: float, members: Sequence[Member], means: Sequence[float]
) -> str:
    finite = [(loss, m.name) for loss, m in zip(means, members, strict=True) if math.isfinite(loss)]
    best = "all diverged"
    if finite:
        loss, name = min(finite)
        best = f"lowest {loss:.4f} ({name})"
    return (
        f"{task.name} seed {seed}: step {done} of {task.total_steps}, "
        f"{1000.0 * pace:.1f} ms a step, {best}"
    )
