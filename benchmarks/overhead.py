"""What `hdet.AutoLR` adds to the time of a run, and to that of a call of ``step()``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import hdet
from benchmarks.contestants import build
from benchmarks.tasks import TASKS, Batch, Task
from benchmarks.timing import interleaved, ratio

SEED = 0
TOTAL_STEPS = 2000
WINDOW = 20
"""Steps of one side before it is the other's turn."""
REPEATS = {"byte_lm": 5, "diamonds": 9}
BASELINE = "hold_then_anneal@0.003"
"""Torch's LambdaLR at a rate that trains."""


class Loop:
    """A training run that is taken a few steps at a time."""

    def __init__(self, task: Task, contestant: str) -> None:
        torch.manual_seed(SEED)
        self.task = task
        self.model: nn.Module = task.build()
        self.contestant = build(contestant, task, self.model, SEED)

    def advance(self, batches: list[Batch]) -> float:
        """A step on each batch; the seconds that it took, without fetching the data."""
        start = time.perf_counter()
        for batch in batches:
            loss = self.task.loss(self.model, batch)
            torch.autograd.backward(loss)
            self.contestant.after_backward(loss)
        return time.perf_counter() - start


def lockstep(
    task: Task, contestants: tuple[str, str], total_steps: int, window: int
) -> list[list[float]]:
    """Two whole runs side by side, window by window: the seconds of each window of each."""
    task.total_steps = total_steps
    loops = [Loop(task, name) for name in contestants]
    seconds: list[list[float]] = [[], []]
    for number, first in enumerate(range(0, total_steps, window)):
        last = min(first + window, total_steps)
        batches = [task.batch(step, SEED) for step in range(first, last)]
        sides = (0, 1) if number % 2 == 0 else (1, 0)
        for side in sides:
            seconds[side].append(loops[side].advance(batches))
    return seconds


def run_overhead(
    name: str,
    *,
    make: Callable[[], Task] | None = None,
    total_steps: int = TOTAL_STEPS,
    window: int = WINDOW,
    repeats: int | None = None,
) -> dict[str, Any]:
    """A whole run with AutoLR against one with LambdaLR: climb, hold, anneal and all cycle ends.

    Each window's time is its median over the repeats, so a disturbance that meets a window once
    does not count, and work that a window always does is counted in full.
    """
    repeats = repeats or REPEATS[name]
    found = [
        lockstep((make or TASKS[name])(), (BASELINE, "autolr"), total_steps, window)
        for _ in range(repeats)
    ]
    base, ours = (
        [statistics.median(own) for own in zip(*(run[side] for run in found), strict=True)]
        for side in (0, 1)
    )
    climb, anneal = len(base) // 10, len(base) // 2
    parts = {"first tenth": (0, climb), "hold": (climb, anneal), "anneal": (anneal, len(base))}
    return {
        "task": name,
        "total_steps": total_steps,
        "repeats": repeats,
        "base_ms": 1e3 * sum(base) / total_steps,
        "ratio": sum(ours) / sum(base),
        "parts": {k: sum(ours[a:b]) / sum(base[a:b]) for k, (a, b) in parts.items()},
    }


def step_overhead(num_groups: int, *, windows: int = 41) -> dict[str, Any]:
    """``hdet.AutoLR.step`` between the ends of cycles against PyTorch's ``OneCycleLR.step``."""
    total = 10_000_000

    def optimizer() -> torch.optim.Optimizer:
        members = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(num_groups)]
        return torch.optim.SGD(members, lr=0.1, momentum=0.9)

    plain = torch.optim.lr_scheduler.OneCycleLR(optimizer(), 0.1, total_steps=total)
    control = hdet.LongHorizonController(climb_steps=total)
    ours = hdet.AutoLR(optimizer(), total, controller=control)
    for scheduler in (plain, ours):
        scheduler.optimizer.step()

    def step_ours() -> None:
        ours.ensemble._updates.note()  # as the hook of optimizer.step() does
        ours.step()

    seconds = interleaved(
        {"torch": lambda: plain.step(), "ours": step_ours},
        windows=windows,
        calls=max(2000 // num_groups, 20),
    )
    return {
        "groups": num_groups,
        "torch_us": 1e6 * statistics.median(seconds["torch"]),
        "ratio": ratio(seconds, "ours", "torch"),
    }


def measure() -> dict[str, Any]:
    """All of it, in about six minutes, on one thread."""
    torch.set_num_threads(1)
    return {
        "seed": SEED,
        "runs": [run_overhead(name) for name in REPEATS],
        "step": [step_overhead(4), step_overhead(100)],
    }


def render(results: Mapping[str, Any]) -> str:
    """The part of a page that shows them; nothing where nothing was measured."""
    if not results:
        return ""
    machine = results["provenance"]
    names = list(results["runs"][0]["parts"])
    lines = [
        "",
        "## What `hdet.AutoLR` adds to a run",
        "",
        "<!-- Made by `python -m benchmarks render` from benchmarks/results/overhead.json. -->",
        "",
        f"Commit {machine['commit']}, torch {machine['torch']}, {machine['machine']}. Whole runs "
        f"on the same batches, with AutoLR and with PyTorch's LambdaLR, in turns of {WINDOW} "
        "steps; the time of a turn is its median over the repeats, and fetching data is left out.",
        "",
        f"| task | steps | repeats | a step with LambdaLR | with AutoLR | {' | '.join(names)} |",
        f"|---|---|---|---|---|{'---|' * len(names)}",
        *(
            f"| {row['task']} | {row['total_steps']} | {row['repeats']} | {row['base_ms']:.2f} ms "
            f"| {_percent(row['ratio'])} | "
            + " | ".join(_percent(row["parts"][name]) for name in names)
            + " |"
            for row in results["runs"]
        ),
        "",
        "`AutoLR.step()` between the ends of cycles:",
        "",
        "| groups | PyTorch's OneCycleLR | hdet.AutoLR |",
        "|---|---|---|",
        *(
            f"| {row['groups']} | {row['torch_us']:.0f} us (1x) | {row['ratio']:.2f}x |"
            for row in results["step"]
        ),
        "",
    ]
    return "\n".join(lines)


def _percent(value: float) -> str:
    return f"{100.0 * (value - 1.0):+.1f} %"
