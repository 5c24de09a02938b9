"""What the raw records say: losses by seed, the best of a grid, distances paired by seed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from benchmarks.contestants import OURS, PEERS, SCHEDULES, column
from benchmarks.runs import DIVERGED
from benchmarks.tasks import SUITES, TASKS, Task

Record = Mapping[str, Any]


class Score(NamedTuple):
    """Percent above a reference, over the seeds that both have."""

    mean: float
    std: float
    """0 with one seed."""
    num_seeds: int
    num_diverged: int = 0
    """Seeds without a loss; with any, mean and std are infinite."""
    is_complete: bool = True
    """Whether no other contestant has more seeds."""


class Results:
    """The records of a study on some tasks, the last of each (task, contestant, seed).

    Args:
        records: of runs; those of other tasks do not count.
        kinds: the tasks by name, in the order of the page; None is the main suite.
    """

    def __init__(
        self, records: Iterable[Record], kinds: Mapping[str, type[Task]] | None = None
    ) -> None:
        self.kinds = {name: TASKS[name] for name in SUITES["main"]} if kinds is None else kinds
        self._records: dict[str, dict[str, dict[int, Record]]] = {}
        for record in records:
            if record["task"] not in self.kinds:
                continue
            own = self._records.setdefault(record["task"], {})
            own.setdefault(record["contestant"], {})[record["seed"]] = record

    @classmethod
    def of_suite(cls, records: Iterable[Record], suite: str) -> Results:
        """Those of one suite of tasks."""
        return cls(records, {name: TASKS[name] for name in SUITES[suite]})

    @property
    def num_seeds(self) -> int:
        """The most seeds that anybody has anywhere."""
        own = (len(seeds) for by_name in self._records.values() for seeds in by_name.values())
        return max(own, default=0)

    @property
    def tasks(self) -> list[str]:
        """Those with a record, in the order of `kinds`."""
        return [task for task in self.kinds if task in self._records]

    def contestants(self, task: str) -> list[str]:
        """Those with a record on a task."""
        return list(self._records.get(task, {}))

    def records(self, task: str, contestant: str) -> list[Record]:
        """By seed."""
        own = self._records.get(task, {}).get(contestant, {})
        return [own[seed] for seed in sorted(own)]

    def losses(self, task: str, contestant: str) -> dict[int, float]:
        """Validation loss by seed."""
        return {r["seed"]: float(r["validation"]) for r in self.records(task, contestant)}

    def held_rates(self, task: str, contestant: str) -> list[float]:
        """The largest group's rate at half of the run, by seed."""
        held = []
        for record in self.records(task, contestant):
            points = [point for point in record["curve"] if 2 * point[0] >= record["total_steps"]]
            held += [max(points[0][2])] if points and points[0][2] else []
        return held

    def best_cell(self, task: str, schedules: Iterable[str] = tuple(SCHEDULES)) -> str | None:
        """The lowest mean among the cells with the most seeds; None without any.

        A cell with one seed does not compete with those that have three: its luck would count.
        """
        cells = [cell for s in schedules for cell in column(self.kinds[task].family, s)]
        losses = {cell: own for cell in cells if (own := self.losses(task, cell))}
        if not losses:
            return None
        most = max(map(len, losses.values()))
        return min(
            (cell for cell, own in losses.items() if len(own) == most),
            key=lambda cell: statistics.fmean(losses[cell].values()),
        )

    def score(self, task: str, contestant: str, reference: str | None) -> Score | None:
        """How far a contestant ends above a reference, paired by seed; None without a pair."""
        own = self.losses(task, contestant)
        other = {} if reference is None else self.losses(task, reference)
        seeds = [s for s in own if s in other and other[s] < DIVERGED]
        if not seeds:
            return None
        is_complete = len(seeds) == self.num_seeds
        num_diverged = sum(own[seed] >= DIVERGED for seed in seeds)
        if num_diverged:
            return Score(float("inf"), float("inf"), len(seeds), num_diverged, is_complete)
        ratios = [100.0 * (own[seed] / other[seed] - 1.0) for seed in seeds]
        std = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
        return Score(statistics.fmean(ratios), std, len(seeds), 0, is_complete)

    def is_ahead(self, task: str, contestant: str, other: str) -> bool | None:
        """Whether its mean loss is lower over the seeds that both have; None without any."""
        own, others = self.losses(task, contestant), self.losses(task, other)
        seeds = own.keys() & others.keys()
        if not seeds:
            return None
        return sum(own[seed] for seed in seeds) < sum(others[seed] for seed in seeds)

    def origins(self) -> list[str]:
        """Which commits, versions and machines the records come from, one line for each."""
        counts: dict[str, dict[str, int]] = {}
        for by_name in self._records.values():
            for name, by_seed in by_name.items():
                for r in by_seed.values():
                    line = f"commit {r['commit']}, torch {r['torch']}, {r['machine']}"
                    own = counts.setdefault(line, {})
                    own[_kind(name)] = own.get(_kind(name), 0) + 1
        return [
            f"{line}: {', '.join(f'{count} runs of {kind}' for kind, count in own.items())}"
            for line, own in counts.items()
        ]


def _kind(name: str) -> str:
    if "@" in name:
        return "the grid"
    return "peers" if name in PEERS else "AutoLR" if name in OURS else "ablations"
