"""What `hdet.Checkpointer` is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hdet
from tests.bad_input.builders import TYPE, VALUE, Case, one_cycle, sgd


def checkpointer(directory: Any = "run", **settings: Any) -> hdet.Checkpointer:
    scheduler = one_cycle()
    parts: dict[str, Any] = {
        "model": nn.Linear(1, 1),
        "optimizer": scheduler.optimizer,
        "scheduler": scheduler,
    }
    return hdet.Checkpointer(directory, **{**parts, **settings})


CASES: dict[str, Case] = {
    "a directory that is a number": (
        lambda: checkpointer(3),
        TYPE,
        r"directory must be the path of a directory, got 3; pass for example",
    ),
    "an empty directory name": (
        lambda: checkpointer(""),
        TYPE,
        "directory must be the path of a directory, got ''",
    ),
    "a directory that is a file": (
        lambda: checkpointer(__file__),
        VALUE,
        "directory must be the path of a directory, got the file .*checkpoints.py",
    ),
    "no cycles between checkpoints": (
        lambda: checkpointer(every_cycles=0),
        VALUE,
        r"every_cycles must be an integer >= 1, got 0",
    ),
    "half a cycle between checkpoints": (
        lambda: checkpointer(every_cycles=0.5),
        TYPE,
        r"every_cycles must be an integer >= 1, got 0\.5",
    ),
    "negative agree_steps": (
        lambda: checkpointer(agree_steps=-1),
        VALUE,
        "agree_steps must be an integer >= 0, got -1",
    ),
    "parameters for a model": (
        lambda: checkpointer(model=[torch.ones(1)]),
        TYPE,
        "model must be an instance of Module, got",
    ),
    "a checkpoint without a model": (
        lambda: checkpointer(model=None),
        TYPE,
        "model must be an instance of Module, got None",
    ),
    "a checkpoint without an optimizer": (
        lambda: checkpointer(optimizer=None),
        TYPE,
        "optimizer must be an instance of Optimizer, got None",
    ),
    "a checkpoint of torch's scheduler": (
        lambda: checkpointer(scheduler=torch.optim.lr_scheduler.ConstantLR(sgd())),
        TYPE,
        "scheduler must be one of hdet's, got a ConstantLR; hdet.OneCycleLR without a spread",
    ),
    "an object without a state": (
        lambda: checkpointer(data=[1, 2, 3]),
        TYPE,
        r"data must have state_dict\(\) and load_state_dict\(\), .* got a list; leave it out",
    ),
    "per_rank names nothing": (
        lambda: checkpointer(per_rank=["data"]),
        VALUE,
        r"per_rank must name objects that are passed by keyword, got \['data'\] of \[\]; pass",
    ),
}
