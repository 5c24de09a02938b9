"""Bad input to `Ensemble`, its stages and the warm start."""

from __future__ import annotations

import torch
from torch import nn

import hdet
from tests.bad_input.builders import (
    NAN,
    TYPE,
    USAGE,
    VALUE,
    Case,
    ensemble,
    one_cycle,
    saved,
    sgd,
    stepped,
    virtual,
    warm,
    with_rate,
)

CASES: dict[str, Case] = {
    # ------------------------------------------------------------ Ensemble
    "an ensemble of no optimizer": (
        lambda: hdet.Ensemble(None, hyperparameters=[hdet.LearningRate()]),
        TYPE,
        "optimizer must be",
    ),
    "no hyperparameters": (lambda: ensemble(hyperparameters=[]), TYPE, "non-empty list"),
    "hyperparameters as one": (
        lambda: ensemble(hyperparameters=hdet.LearningRate()),
        TYPE,
        r"for example \[hdet\.LearningRate",
    ),
    "a hyperparameter that is a number": (lambda: ensemble(hyperparameters=[0.1]), TYPE, "each of"),
    "a group that is not there": (
        lambda: ensemble(hyperparameters=[hdet.LearningRate(1)]),
        VALUE,
        "below the optimiser's 1 parameter groups, got 1",
    ),
    "the same hyperparameter twice": (
        lambda: ensemble(hyperparameters=[hdet.LearningRate(0), hdet.LearningRate(0)]),
        VALUE,
        r"\['lr/0'\] more than once",
    ),
    "a negative group": (lambda: hdet.LearningRate(-1), VALUE, "group must be an integer >= 0"),
    "bounds that are one number": (lambda: hdet.LearningRate(bounds=0.1), VALUE, "pair"),
    "bounds upside down": (lambda: hdet.LearningRate(bounds=(1.0, 0.1)), VALUE, "low < high"),
    "bounds of NaN": (lambda: hdet.LearningRate(bounds=(NAN, 1.0)), VALUE, "low < high"),
    "negative bounds": (
        lambda: hdet.LearningRate(bounds=(-1.0, 1.0)),
        VALUE,
        "must not be negative",
    ),
    "total_steps of zero": (lambda: ensemble(total_steps=0), VALUE, "total_steps"),
    "a controller that is a class": (
        lambda: ensemble(controller=hdet.PaperController),
        TYPE,
        "controller must be an instance of AbstractController",
    ),
    "a signal that is text": (lambda: ensemble(signal="loss"), TYPE, "signal must be"),
    "a schedule that is a number": (lambda: ensemble(schedule=0.1), TYPE, "schedule must be None"),
    "a schedule that returns NaN": (
        lambda: ensemble(schedule=lambda _: NAN),
        VALUE,
        "factor at step 0 must be a finite number",
    ),
    "a schedule that needs a metric": (
        lambda: ensemble(
            optimizer=(o := sgd()), schedule=torch.optim.lr_scheduler.ReduceLROnPlateau(o)
        ),
        TYPE,
        "ReduceLROnPlateau",
    ),
    "a schedule of another optimizer": (
        lambda: ensemble(schedule=torch.optim.lr_scheduler.StepLR(sgd(), 1)),
        VALUE,
        "ensemble's own optimizer",
    ),
    "a schedule that explores by itself": (
        lambda: ensemble(optimizer=(o := sgd()), schedule=one_cycle(optimizer=o)),
        TYPE,
        r"plain LRScheduler, got one that explores by itself \(OneCycleLR\); pass torch's own",
    ),
    "a chain with one that explores by itself": (
        lambda: ensemble(
            optimizer=(o := sgd()),
            schedule=torch.optim.lr_scheduler.SequentialLR(
                o, [torch.optim.lr_scheduler.ConstantLR(o), one_cycle(optimizer=o)], [2]
            ),
        ),
        TYPE,
        r"explores by itself \(SequentialLR\)",
    ),
    "a step too many": (
        lambda: [
            ensemble_
            for ensemble_ in [ensemble(total_steps=1)]
            for _ in range(2)
            if stepped(ensemble_)
        ],
        USAGE,
        "called 2 times, and total_steps is 1",
    ),
    "a replica that is not there": (lambda: virtual().replica_values(4), VALUE, "below 4, got 4"),
    "a state of another version": (
        lambda: ensemble().load_state_dict(saved(version=99)),
        VALUE,
        "version 99",
    ),
    "a state that is a list": (
        lambda: ensemble().load_state_dict([]),
        VALUE,
        "list of version None",
    ),
    "a state of other hyperparameters": (
        lambda: ensemble(
            optimizer=sgd(groups=2), hyperparameters=[hdet.LearningRate(1)]
        ).load_state_dict(saved()),
        VALUE,
        r"\['lr/1'\], got \['lr/0'\]",
    ),
    "a schedule that goes below zero": (
        lambda: ensemble(schedule=lambda _: -1.0),
        VALUE,
        r"factor at step 0 must be a finite number in \[0, inf\], got -1\.0",
    ),
    "a schedule of two arguments": (
        lambda: ensemble(schedule=lambda step, total: step / total),
        TYPE,
        "takes the step alone.*functools.partial",
    ),
    "a schedule that is a class": (
        lambda: ensemble(schedule=torch.optim.lr_scheduler.StepLR),
        TYPE,
        "schedule must be None, a function.*StepLR",
    ),
    "a rate of NaN": (
        lambda: ensemble(optimizer=with_rate(NAN)),
        VALUE,
        "lr/0 in the optimizer must be a finite number.*got nan",
    ),
    "a rate out of bounds": (
        lambda: ensemble(hyperparameters=[hdet.LearningRate(0, bounds=(1.0, 2.0))]),
        VALUE,
        r"lr/0 in the optimizer must be a finite number in \[1, 2\], got 0\.1.*widen the bounds",
    ),
    "a loss that is text, switched off": (
        lambda: stepped(ensemble(), "garbage"),
        TYPE,
        "loss must be a floating-point tensor or a float, got 'garbage'",
    ),
    "a loss that is a vector, switched off": (
        lambda: stepped(one_cycle(), torch.ones(5)),
        VALUE,
        r"loss must be a scalar, got shape \(5,\)",
    ),
    "a loss that is True, switched off": (lambda: stepped(one_cycle(), True), TYPE, "True"),
    # ------------------------------------------------------------ replicas
    "no virtual replicas": (lambda: hdet.VirtualReplicas(0), VALUE, "num_replicas"),
    "virtual replicas of text": (lambda: hdet.VirtualReplicas("8"), TYPE, "num_replicas"),
    "exact as a number": (lambda: hdet.VirtualReplicas(2, exact=1), TYPE, "exact must be True"),
    "processes without a group": (
        hdet.DistributedReplicas,
        USAGE,
        r"init_process_group\(\) first.*VirtualReplicas",
    ),
    "a batch that does not divide": (
        lambda: list(virtual().fan_out(torch.ones(6, 2))),
        VALUE,
        "divide evenly over 4 replicas, got 6 examples.*drop_last",
    ),
    "an empty batch": (lambda: list(virtual().fan_out(torch.ones(0, 2))), VALUE, "got 0 examples"),
    "a batch without a tensor": (
        lambda: list(virtual().fan_out(["a"])),
        TYPE,
        "at least one tensor",
    ),
    "a batch of two sizes": (
        lambda: list(virtual().fan_out((torch.ones(8), torch.ones(4)))),
        VALUE,
        r"\[\(4,\), \(8,\)\]",
    ),
    # ------------------------------------------------------------ warm start
    "a warm start of nothing": (
        lambda: hdet.warm_start_(None),
        TYPE,
        "model must be an instance of Module",
    ),
    "a warm start of a frozen model": (
        lambda: hdet.warm_start_(nn.Linear(1, 1).requires_grad_(False)),
        VALUE,
        "require a gradient, got none",
    ),
    "a warm start of sparse parameters": (
        warm(torch.eye(3).to_sparse()),
        TYPE,
        r"got layout torch\.sparse_coo as weight; freeze it",
    ),
    "a warm start of meta parameters": (
        warm(torch.ones(2, device="meta")),
        TYPE,
        "got a meta tensor as weight; load the checkpoint",
    ),
    "a warm start of parameters without a shape": (
        warm(nn.parameter.UninitializedParameter()),
        TYPE,
        "got one without a shape yet as weight; run the model",
    ),
    "a warm start of 8-bit parameters": (
        warm(torch.ones(2).to(torch.float8_e4m3fn)),
        TYPE,
        r"got torch\.float8_e4m3fn as weight; freeze it",
    ),
    "a warm start with negative noise": (
        lambda: hdet.warm_start_(nn.Linear(1, 1), noise_scale=-1),
        VALUE,
        "noise_scale",
    ),
    "a warm start of a text seed": (
        lambda: hdet.warm_start_(nn.Linear(1, 1), seed="a"),
        TYPE,
        "seed",
    ),
    "a warm start with per_tensor as a number": (
        lambda: hdet.warm_start_(nn.Linear(1, 1), per_tensor=1),
        TYPE,
        "per_tensor",
    ),
    # ------------------------------------------------------------ PaperController
    "a controller that starts before the run": (
        lambda: hdet.PaperController(start_step=-5),
        VALUE,
        "start_step",
    ),
    "a controller that keeps everything": (
        lambda: hdet.PaperController(rescue_ratio=1.0),
        VALUE,
        r"rescue_ratio.*\(0, 1\), got 1\.0",
    ),
    "a controller with a decay of two": (
        lambda: hdet.PaperController(base_decay=2),
        VALUE,
        "base_decay",
    ),
}
