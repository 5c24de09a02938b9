"""Tasks whose data an ordinary package install brings."""

from benchmarks.tasks.base import Batch, Task
from benchmarks.tasks.byte_lm import ByteLM
from benchmarks.tasks.diamonds import Diamonds
from benchmarks.tasks.flights import Flights
from benchmarks.tasks.images import Fashion, FashionAdamW

TASKS: dict[str, type[Task]] = {
    task.name: task for task in (ByteLM, Flights, Fashion, FashionAdamW, Diamonds)
}

__all__ = ["TASKS", "Batch", "Task"]
