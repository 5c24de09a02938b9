"""`hdet.AutoLR` with nothing given, with a probe, and with one thing changed at a time."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

from torch import nn

import hdet
from benchmarks.contestants.base import Steered, base_optimizer
from benchmarks.contestants.greedy import CycleProduct
from benchmarks.tasks import Batch, Task

OURS = ("autolr", "autolr_probe")
ABLATIONS = (
    "greedy",
    "autolr:stride=0.0",
    "autolr:noise_price=0.0",
    "autolr:noise_price=1.0",
    "autolr:recent_window=0.1",
    "autolr:older_window=1.0",
    "autolr:back_off=1.0",
    "autolr:settle=1.0",
    "autolr:patience=1000",
    "autolr:doubt=0.0",
    "autolr:trust=0.0",
    "autolr:anneal=0.3",
    "autolr:per_group=True",
    "autolr:start_value=1e-9",
    "autolr:start_value=1e-3",
    "autolr:start_value=1e-1",
)
"""One thing changed at a time; what each is for is said in the report."""


class LookAhead:
    """Training batches from beyond the end of the run, without end."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task = task
        self.seed = seed

    def __iter__(self) -> Iterator[Batch]:
        for step in itertools.count(self.task.total_steps):
            yield self.task.batch(step, self.seed)


class Auto(Steered):
    """The task's optimiser at PyTorch's default rate, and an AutoLR that makes of it what it will.

    Args:
        task: what is trained.
        model: its model.
        settings: of `hdet.AutoLR`.
    """

    def __init__(self, task: Task, model: nn.Module, settings: dict[str, Any]) -> None:
        super().__init__(task, model)
        self.optimizer = base_optimizer(task, model)
        self.scheduler = hdet.AutoLR(self.optimizer, task.total_steps, **settings)


def is_ours(name: str) -> bool:
    """Whether `auto` knows the name."""
    return name in (*OURS, "greedy") or name.startswith("autolr:")


def auto(name: str, task: Task, model: nn.Module, seed: int) -> Auto:
    """The contestant of that name: ``autolr``, ``autolr_probe``, ``greedy``, ``autolr:K=V,...``."""
    settings: dict[str, Any] = {}
    if name == "autolr_probe":
        settings["probe"] = hdet.Probe(lambda batch: task.loss(model, batch), LookAhead(task, seed))
    elif name == "greedy":
        settings["signal"] = CycleProduct()
    elif name != "autolr":
        settings = changed(name.removeprefix("autolr:"), task.total_steps)
    return Auto(task, model, settings)


def changed(text: str, total_steps: int) -> dict[str, Any]:
    """AutoLR's settings for ``KEY=VALUE,...``; a key goes to whoever's constructor has it.

    >>> settings = changed("anneal=0.4,doubt=2.0", 300)
    >>> settings["anneal"], settings["controller"].doubt, settings["controller"].climb_end
    (0.4, 2.0, 100)
    """
    given = dict(item.split("=", 1) for item in text.split(","))
    values = {key: ast.literal_eval(value) for key, value in given.items()}
    signal, controller, rest = (
        {key: value for key, value in values.items() if key in inspect.signature(kind).parameters}
        for kind in (hdet.GradientProduct, hdet.LongHorizonController, hdet.AutoLR)
    )
    unknown = set(values) - set(signal) - set(controller) - set(rest)
    if unknown:
        raise ValueError(
            f"autolr:KEY=VALUE takes settings of GradientProduct, LongHorizonController and "
            f"AutoLR, got {sorted(unknown)}"
        )
    # What AutoLR itself passes; tests compare a run with one of AutoLR's own.
    controller.setdefault("climb_end", max(total_steps // 3, 1))
    settings = {key: value for key, value in rest.items() if key not in signal}
    if signal:
        settings["signal"] = hdet.GradientProduct(**signal)
    settings["controller"] = hdet.LongHorizonController(**controller)
    return settings
