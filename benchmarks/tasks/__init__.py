"""Tasks whose data an ordinary package install brings."""

from collections.abc import Iterable

from benchmarks.tasks import development, unseen
from benchmarks.tasks.base import Batch, Task
from benchmarks.tasks.byte_lm import ByteLM
from benchmarks.tasks.diamonds import Diamonds
from benchmarks.tasks.flights import Flights
from benchmarks.tasks.images import Fashion, FashionAdamW

MAIN: tuple[type[Task], ...] = (ByteLM, Flights, Fashion, FashionAdamW, Diamonds)
_SUITES: dict[str, tuple[type[Task], ...]] = {
    "main": MAIN,
    "development": development.TASKS,
    "unseen": unseen.TASKS,
}

TASKS: dict[str, type[Task]] = {task.name: task for suite in _SUITES.values() for task in suite}
SUITES: dict[str, tuple[str, ...]] = {
    name: tuple(task.name for task in suite) for name, suite in _SUITES.items()
}
"""``main`` is what the report shows."""


def expand(names: Iterable[str]) -> list[str]:
    """Names of tasks, in which that of a suite stands for its tasks.

    >>> expand(["diamonds", "main"])
    ['diamonds', 'byte_lm', 'flights', 'fashion_sgd', 'fashion_adamw']
    """
    return list(dict.fromkeys(task for name in names for task in SUITES.get(name, (name,))))


__all__ = ["SUITES", "TASKS", "Batch", "Task", "expand"]
