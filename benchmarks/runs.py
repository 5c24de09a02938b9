"""One run of one contestant, and many of them side by side, resumable."""

from __future__ import annotations

import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks import timing
from benchmarks.contestants import Contestant, build
from benchmarks.tasks import TASKS, Task

NUM_EVEN = 18
"""Points of a curve that lie evenly over the run; a few more are where the rate climbs."""
DIVERGED = 1e9


class Job(NamedTuple):
    """What tells a run from another."""

    task: str
    contestant: str
    seed: int
    total_steps: int | None = None
    """None is the task's own; anything else is a trial of the machinery."""


def recorded_steps(total_steps: int) -> list[int]:
    """At most 25 of them: 4, 8, 16, ... over the first twentieth, then evenly.

    >>> recorded_steps(200)
    [4, 8, 11, 22, 33, 44, 55, 66, 77, 88, 100, 111, 122, 133, 144, 155, 166, 177, 188, 200]
    """
    early = [2**k for k in range(2, 9) if 2**k < total_steps / 20]
    even = [max(total_steps * i // NUM_EVEN, 1) for i in range(1, NUM_EVEN + 1)]
    return sorted({*early, *even})


def train(task: Task, seed: int, make: Callable[[Task, nn.Module], Contestant]) -> dict[str, Any]:
    """Train and validate; the same weights and batches for every contestant of a seed."""
    torch.manual_seed(seed)
    model = task.build()
    contestant = make(task, model)
    torch.manual_seed(seed + 1)  # dropout
    points = set(recorded_steps(task.total_steps))
    curve: list[list[Any]] = []
    recent: list[float] = []
    start = time.perf_counter()
    for step in range(task.total_steps):
        loss = task.loss(model, task.batch(step, seed))
        torch.autograd.backward(loss)
        contestant.after_backward(loss)
        recent.append(loss.item())
        if not math.isfinite(recent[-1]):
            break
        if step + 1 in points:
            rates = [short(rate) for rate in contestant.rates]
            curve.append([step + 1, short(sum(recent) / len(recent)), alone(rates)])
            recent = []
    seconds = time.perf_counter() - start
    contestant.finish()
    validation = task.validate(model)
    return {
        "validation": float(f"{validation:.8g}") if math.isfinite(validation) else DIVERGED,
        "seconds": round(seconds, 2),
        "total_steps": task.total_steps,
        "curve": curve,
    }


def short(number: float) -> float:
    """To four digits."""
    return float(f"{number:.4g}")


def alone(rates: list[float]) -> list[float]:
    """One number where all groups have the same."""
    return rates[:1] if len(set(rates)) == 1 else rates


def perform(job: Job) -> dict[str, Any]:
    """One job, in whatever process this is."""
    torch.set_num_threads(1)
    task = TASKS[job.task]()
    task.total_steps = job.total_steps or task.total_steps
    result = train(task, job.seed, lambda t, m: build(job.contestant, t, m, job.seed))
    identity = {"task": job.task, "contestant": job.contestant, "seed": job.seed}
    return {**identity, **result, **timing.provenance()}


def load(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none if it does not exist yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def dump(record: dict[str, Any]) -> str:
    """A record as a line."""
    return json.dumps(record, separators=(",", ":")) + "\n"


def forget(path: Path, tasks: Iterable[str], contestants: Iterable[str]) -> int:
    """Drop what the file holds of these contestants on these tasks; return how many records."""
    tasks, contestants = set(tasks), set(contestants)
    records = load(path)
    kept = [r for r in records if r["task"] not in tasks or r["contestant"] not in contestants]
    if len(kept) < len(records):
        path.write_text("".join(map(dump, kept)))
    return len(records) - len(kept)


def left_to_do(jobs: Iterable[Job], path: Path) -> list[Job]:
    """Those whose record the file does not hold yet, each once."""
    done = {(r["task"], r["contestant"], r["seed"]) for r in load(path)}
    return [job for job in dict.fromkeys(jobs) if job[:3] not in done]


def perform_all(jobs: Iterable[Job], path: Path, num_workers: int) -> Iterator[dict[str, Any]]:
    """Perform what the file does not hold yet, append each record, and yield it.

    One worker is this process itself.
    """
    todo = left_to_do(jobs, path)
    if not todo:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if num_workers == 1:
        yield from _appended(map(perform, todo), path)
        return
    with multiprocessing.get_context("spawn").Pool(num_workers) as pool:
        yield from _appended(pool.imap_unordered(perform, todo), path)


def _appended(records: Iterable[dict[str, Any]], path: Path) -> Iterator[dict[str, Any]]:
    for record in records:
        with path.open("a") as file:
            file.write(dump(record))
        yield record
