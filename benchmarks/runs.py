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

NUM_RECORDED = 100
DIVERGED = 1e9


class Job(NamedTuple):
    """What tells a run from another."""

    task: str
    contestant: str
    seed: int


def train(task: Task, seed: int, make: Callable[[Task, nn.Module], Contestant]) -> dict[str, Any]:
    """Train and validate; the same weights and batches for every contestant of a seed."""
    torch.manual_seed(seed)
    model = task.build()
    contestant = make(task, model)
    torch.manual_seed(seed + 1)  # dropout
    every = max(task.total_steps // NUM_RECORDED, 1)
    curve: list[tuple[int, float, list[float]]] = []
    recent = 0.0
    start = time.perf_counter()
    for step in range(task.total_steps):
        loss = task.loss(model, task.batch(step, seed))
        torch.autograd.backward(loss)
        contestant.after_backward(loss)
        recent += loss.item()
        if not math.isfinite(recent):
            break
        if (step + 1) % every == 0:
            curve.append((step + 1, recent / every, contestant.rates))
            recent = 0.0
    seconds = time.perf_counter() - start
    contestant.finish()
    validation = task.validate(model)
    return {
        "validation": validation if math.isfinite(validation) else DIVERGED,
        "seconds": seconds,
        "curve": curve,
    }


def perform(job: Job) -> dict[str, Any]:
    """One job, in whatever process this is."""
    torch.set_num_threads(1)
    task = TASKS[job.task]()
    result = train(task, job.seed, lambda t, m: build(job.contestant, t, m))
    return {**job._asdict(), **result, **timing.provenance()}


def load(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none if it does not exist yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def perform_all(jobs: Iterable[Job], path: Path, num_workers: int) -> Iterator[dict[str, Any]]:
    """Perform what the file does not hold yet, append each record, and yield it."""
    done = {Job(r["task"], r["contestant"], r["seed"]) for r in load(path)}
    todo = [job for job in dict.fromkeys(jobs) if job not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(num_workers) as pool:
        for record in pool.imap_unordered(perform, todo):
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")
            yield record
