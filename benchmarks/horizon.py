"""Short-horizon bias: which rate looks best a few steps ahead.

A run stands at a common state after training at the best held rate of the grid. From there branches
go on at multiples of that rate, on the same batches, for a small part of the run. Judged by their
last point, lower rates always look better: they damp the noise, which the final anneal would have
removed anyway. Judged by the average of the branch, from which the noise is gone, the rate that is
best in the end looks best, or nearly so.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import timing
from benchmarks.contestants import base_optimizer
from benchmarks.runs import load
from benchmarks.tasks import TASKS, Task

MULTIPLES = (1 / 3, 3**-0.5, 1.0, 3**0.5, 3.0)
STARTS = (0.1, 0.3, 0.6)
"""Where the branches leave, as a part of the run."""
LENGTH = 0.03
"""How long they are, as a part of the run."""
NUM_JUDGES = 16
WARMUP_PART = 0.05


class Job(NamedTuple):
    """A task at its best held rate, and a seed."""

    task: str
    rate: float
    seed: int


class _Training:
    def __init__(self, task: Task, seed: int) -> None:
        torch.manual_seed(seed)
        self.task, self.seed = task, seed
        self.model = task.build()
        self.optimizer = base_optimizer(task, self.model, 1.0)
        torch.manual_seed(seed + 1)

    @property
    def params(self) -> list[torch.Tensor]:
        """All that the optimiser moves."""
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    def step(self, index: int, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self.task.loss(self.model, self.task.batch(index, self.seed))
        torch.autograd.backward(loss)
        if self.task.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def judge(self) -> float:
        """The mean loss on batches that no branch sees."""
        first = 2 * self.task.total_steps
        batches = (self.task.batch(first + i, self.seed) for i in range(NUM_JUDGES))
        return sum(float(self.task.loss(self.model, batch)) for batch in batches) / NUM_JUDGES

    def state(self) -> Any:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def restore(self, state: Any) -> None:
        model, optimizer = copy.deepcopy(state)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


def _branch(training: _Training, start: int, rate: float) -> tuple[float, float]:
    """The loss at the end of a branch, and at the average of its second half."""
    length = max(int(LENGTH * training.task.total_steps), 4)
    averages: list[torch.Tensor] = []
    for index in range(length):
        training.step(start + index, rate)
        present = [param.detach() for param in training.params]
        if index == length // 2:
            averages = [param.clone() for param in present]
        elif index > length // 2:
            torch._foreach_lerp_(averages, present, 1.0 / (index - length // 2 + 1))
    at_end = training.judge()
    with torch.no_grad():
        torch._foreach_copy_(training.params, averages)
    return at_end, training.judge()


def perform(job: Job) -> dict[str, Any]:
    """All branches of one run."""
    torch.set_num_threads(1)
    task = TASKS[job.task]()
    training = _Training(task, job.seed)
    warmup, taken = max(int(WARMUP_PART * task.total_steps), 1), 0
    branches = []
    for part in STARTS:
        start = int(part * task.total_steps)
        while taken < start:
            training.step(taken, job.rate * min((taken + 1) / (warmup + 1), 1.0))
            taken += 1
        state = training.state()
        for multiple in MULTIPLES:
            at_end, at_average = _branch(training, start, job.rate * multiple)
            branches.append([part, round(multiple, 4), round(at_end, 6), round(at_average, 6)])
            training.restore(state)
    return {**job._asdict(), "branches": branches, **timing.provenance()}


def best_held(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Each task's best rate under hold-then-anneal, by seed 0."""
    found: dict[str, tuple[float, float]] = {}
    for record in records:
        schedule, _, rate = record["contestant"].partition("@")
        if schedule == "hold_then_anneal" and record["seed"] == 0:
            own = (record["validation"], float(rate))
            found[record["task"]] = min(found.get(record["task"], own), own)
    return {task: rate for task, (_, rate) in found.items()}


def run(
    grid: Iterable[Mapping[str, Any]], path: Path, num_seeds: int, num_workers: int
) -> Iterator[str]:
    """Perform what the file does not hold yet, append each record, and yield a line about it."""
    rates = best_held(grid)
    done = {(record["task"], record["seed"]) for record in load(path)}
    jobs = [Job(task, rate, seed) for seed in range(num_seeds) for task, rate in rates.items()]
    todo = [job for job in jobs if (job.task, job.seed) not in done]
    with multiprocessing.get_context("spawn").Pool(num_workers) as pool:
        for record in pool.imap_unordered(perform, todo):
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")
            yield f"{record['task']} seed {record['seed']}"
