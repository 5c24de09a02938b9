"""The comparison of `hdet.AutoLR` with a tuned grid and with rate-free peers, in two rounds.

Round one runs every cell of the grid with seed 0. Round two gives the best cell of each schedule
and its neighbours the remaining seeds, and everybody who needs no rate all of them.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import runs
from benchmarks.contestants import (
    ABLATIONS,
    OURS,
    PEERS,
    SCHEDULES,
    column,
    grid,
    is_ours,
    with_neighbours,
)
from benchmarks.runs import DIVERGED, Job
from benchmarks.tasks import TASKS

GROUPS = {"peers": PEERS, "ours": OURS, "ablations": ABLATIONS}
DEFAULT = "grid,ours,peers,ablations"
QUICK_STEPS = 60
GUESSED_SECONDS = 10.0


def chosen(text: str) -> list[str]:
    """Names from a comma-separated list, in which an ablation may have commas of its own.

    >>> chosen("grid,autolr:patience=9.0,doubt=0.0,dog")
    ['grid', 'autolr:patience=9.0,doubt=0.0', 'dog']
    """
    names: list[str] = []
    for item in filter(None, text.split(",")):
        if "=" in item and ":" not in item and names:
            names[-1] += f",{item}"
        else:
            names.append(item)
    expanded = [own for name in names for own in GROUPS.get(name, (name,))]
    for name in expanded:
        if name != "grid" and "@" not in name and name not in PEERS and not is_ours(name):
            known = ", ".join(["grid", *GROUPS, "SCHEDULE@RATE", *OURS, *PEERS, "autolr:KEY=VALUE"])
            raise ValueError(f"--contestants takes {known}; got {name!r}")
    return list(dict.fromkeys(expanded))


def first_round(
    tasks: Sequence[str], names: Sequence[str], total_steps: int | None = None
) -> list[Job]:
    """The whole grid with one seed, if it is among the names."""
    if "grid" not in names:
        return []
    return [Job(task, cell, 0, total_steps) for task in tasks for cell in grid(TASKS[task])]


def promoted(task: str, records: Iterable[dict[str, Any]], family: str | None = None) -> list[str]:
    """The best cell of each schedule by seed 0, and its neighbours; the family is the task's."""
    family = family or TASKS[task].family
    losses = {
        record["contestant"]: record["validation"]
        for record in records
        if record["task"] == task and record["seed"] == 0
    }
    cells = []
    for schedule in SCHEDULES:
        own = [cell for cell in column(family, schedule) if cell in losses]
        if own:
            best = min(own, key=lambda cell: losses[cell])
            cells += with_neighbours(family, best)
    return cells


def second_round(
    tasks: Sequence[str],
    names: Sequence[str],
    seeds: int,
    records: Iterable[dict[str, Any]],
    total_steps: int | None = None,
) -> list[Job]:
    """All seeds for the cells that round one left in, and for everybody else."""
    records = list(records)
    jobs = []
    for task in tasks:
        cells = promoted(task, records) if "grid" in names else []
        for name in [*cells, *(name for name in names if name != "grid")]:
            jobs += [Job(task, name, seed, total_steps) for seed in range(seeds)]
    return jobs


def run(
    tasks: Sequence[str],
    names: Sequence[str],
    *,
    seeds: int,
    path: Path,
    num_workers: int,
    total_steps: int | None = None,
) -> Iterator[str]:
    """Perform both rounds and yield a line for every run that has finished."""
    jobs = first_round(tasks, names, total_steps)
    yield from _lines("grid", jobs, path, num_workers)
    jobs = second_round(tasks, names, seeds, runs.load(path), total_steps)
    yield from _lines("seeds", jobs, path, num_workers)


def _lines(title: str, jobs: Sequence[Job], path: Path, num_workers: int) -> Iterator[str]:
    cost = _seconds_by_task(runs.load(path))
    todo = runs.left_to_do(jobs, path)
    yield f"{title}: {len(todo)} runs to do, {len(set(jobs)) - len(todo)} there already"
    left, done = sum(cost[job.task] for job in todo), 0.0
    start = time.monotonic()
    for number, record in enumerate(runs.perform_all(todo, path, num_workers), 1):
        own = cost[record["task"]]
        left, done = left - own, done + own
        minutes = (time.monotonic() - start) * left / done / 60.0
        loss = record["validation"]
        yield (
            f"[{number}/{len(todo)}] {record['task']} {record['contestant']} seed {record['seed']}:"
            f" {'diverged' if loss >= DIVERGED else f'{loss:.5f}'} in {record['seconds']:.0f} s, "
            f"{minutes:.0f} min left"
        )


def _seconds_by_task(records: Iterable[dict[str, Any]]) -> dict[str, float]:
    """What a run has taken on average, to guess the time left."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for record in records:
        seconds[record["task"]].append(record["seconds"])
    return {task: max(statistics.fmean(seconds[task] or [GUESSED_SECONDS]), 0.01) for task in TASKS}
