"""Every bad input has its line: argument, allowed range, value received, remedy.

Errors that need several processes are in test_distributed.py and test_converge.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet import functional as F  # noqa: N812
from hdet.errors import HDETError, InvalidTypeError, InvalidValueError, UsageError


def sgd(lr: Any = 0.1, groups: int = 1, **settings: Any) -> torch.optim.Optimizer:
    members = [{"params": [nn.Parameter(torch.ones(2))]} for _ in range(groups)]
    return torch.optim.SGD(members, lr=lr, momentum=0.9, **settings)


def one_cycle(**settings: Any) -> hdet.OneCycleLR:
    optimizer = settings.pop("optimizer", None)
    return hdet.OneCycleLR(
        sgd() if optimizer is None else optimizer, **{"max_lr": 0.1, "total_steps": 10, **settings}
    )


def ensemble(**settings: Any) -> hdet.Ensemble:
    optimizer = settings.pop("optimizer", None)
    defaults: dict[str, Any] = {"hyperparameters": [hdet.LearningRate(0)]}
    return hdet.Ensemble(sgd() if optimizer is None else optimizer, **{**defaults, **settings})


def virtual(**settings: Any) -> hdet.Ensemble:
    return ensemble(
        hyperparameters=[hdet.LearningRate(0, spread_ratio=0.1)],
        replicas=hdet.VirtualReplicas(4),
        **settings,
    )


def with_rate(rate: Any) -> torch.optim.Optimizer:
    optimizer = sgd()
    optimizer.param_groups[0]["lr"] = rate
    return optimizer


def stepped(scheduler: Any, *args: Any) -> None:
    scheduler.optimizer.step()
    scheduler.step(*args)


def saved(**changes: Any) -> dict[str, Any]:
    return {**ensemble().state_dict(), **changes}


def entry_of(**changes: Any) -> dict[str, Any]:
    """A saved state whose one hyperparameter has something else to say."""
    return saved(hyperparameters={"lr/0": {"base": 0.1, **changes}})


def torch_planned() -> hdet.Ensemble:
    optimizer = sgd()
    plan = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return ensemble(optimizer=optimizer, schedule=plan)


def loading(state: Any) -> Callable[[], None]:
    return lambda: one_cycle().load_state_dict(state)


def warm(param: torch.Tensor) -> Callable[[], None]:
    model = nn.Module()
    model.weight = param if isinstance(param, nn.Parameter) else nn.Parameter(param)
    return lambda: hdet.warm_start_(model)


VALUE, TYPE, USAGE = InvalidValueError, InvalidTypeError, UsageError
NAN, INF = float("nan"), float("inf")
ONES = torch.ones(3)

BAD: dict[str, tuple[Callable[[], Any], type[HDETError], str]] = {
    # ------------------------------------------------------------ functional
    "multipliers of no replica": (
        lambda: F.spread_multipliers(0, 0.1),
        VALUE,
        r"num_replicas must be an integer >= 1, got 0",
    ),
    "multipliers of half a replica": (
        lambda: F.spread_multipliers(1.5, 0.1),
        TYPE,
        r"1\.5 \(float\)",
    ),
    "multipliers of True": (lambda: F.spread_multipliers(True, 0.1), TYPE, r"True \(bool\)"),
    "negative spread": (lambda: F.spread_multipliers(2, -0.1), VALUE, r"in \[0, inf\], got -0\.1"),
    "NaN spread": (lambda: F.spread_multipliers(2, NAN), VALUE, "spread_ratio.*got nan"),
    "spread as text": (lambda: F.spread_multipliers(2, "0.1"), TYPE, r"'0\.1' \(str\)"),
    "seed as float": (lambda: F.permutation(0.5, 0, 0, 2), TYPE, "seed"),
    "negative cycle": (lambda: F.permutation(0, -1, 0, 2), VALUE, "cycle must be an integer >= 0"),
    "negative index": (lambda: F.permutation(0, 0, -1, 2), VALUE, "index must be an integer >= 0"),
    "permutation of nobody": (lambda: F.permutation(0, 0, 0, 0), VALUE, "num_replicas"),
    "temperature of zero": (
        lambda: F.softmax_weights(ONES, 0.0),
        VALUE,
        r"temperature must be a finite number in \(0, inf\], got 0\.0",
    ),
    "infinite temperature": (lambda: F.softmax_weights(ONES, INF), VALUE, "temperature.*got inf"),
    "NaN among the losses": (
        lambda: F.softmax_weights(torch.tensor([1.0, NAN]), 0.1),
        VALUE,
        "losses_R must be finite.*leave out",
    ),
    "losses of two dimensions": (
        lambda: F.softmax_weights(torch.ones(2, 2), 0.1),
        VALUE,
        r"\(2, 2\)",
    ),
    "no losses": (lambda: F.softmax_weights(torch.ones(0), 0.1), VALUE, "at least one"),
    "losses as text": (lambda: F.softmax_weights("abc", 0.1), TYPE, "losses_R.*'abc'"),
    "weights of another length": (
        lambda: F.hypergradient(ONES, torch.ones(2)),
        VALUE,
        r"weights_R.*3 entries, got shape \(2,\)",
    ),
    "values of no dimension": (lambda: F.hypergradient(torch.ones(()), ONES), VALUE, "values_R"),
    "momentum of one": (
        lambda: F.meta_update(0, 0, 1, meta_momentum=1.0, meta_lr=0.5, base_decay=0),
        VALUE,
        r"meta_momentum must be a finite number in \[0, 1\), got 1\.0",
    ),
    "negative meta_lr": (
        lambda: F.meta_update(0, 0, 1, meta_momentum=0.9, meta_lr=-1, base_decay=0),
        VALUE,
        "meta_lr.*got -1",
    ),
    "decay of one": (
        lambda: F.meta_update(0, 0, 1, meta_momentum=0.9, meta_lr=1, base_decay=1.0),
        VALUE,
        "base_decay.*got 1.0",
    ),
    "NaN velocity": (
        lambda: F.meta_update(NAN, 0, 1, meta_momentum=0.9, meta_lr=1, base_decay=0),
        VALUE,
        "velocity",
    ),
    "infinite hypergradient": (
        lambda: F.meta_update(0, INF, 1, meta_momentum=0.9, meta_lr=1, base_decay=0),
        VALUE,
        "delta",
    ),
    "div_factor of zero": (lambda: F.base_decay(0, 1e4, 5), VALUE, r"div_factor.*\(0, inf\]"),
    "negative final_div_factor": (lambda: F.base_decay(25, -1, 5), VALUE, "final_div_factor"),
    "decay over no cycles": (lambda: F.base_decay(25, 1e4, 0), VALUE, "num_cycles"),
    "start ratio of zero": (
        lambda: F.base_decay(25, 1e4, 5, start_ratio=0.0),
        VALUE,
        "start_ratio",
    ),
    "decay that overflows": (
        lambda: F.base_decay(25, 1e4, 1e-5, literal=True),
        VALUE,
        "num_cycles must leave .*got 1e-05",
    ),
    "decay of everything in a cycle": (lambda: F.base_decay(25, 1e4, 1e-5), VALUE, "more cycles"),
    "decay over a factor that underflows": (
        lambda: F.base_decay(1e-200, 1e-200, 5),
        VALUE,
        "factor of 0 in all",
    ),
    "literal decay as text": (lambda: F.base_decay(25, 1e4, 5, "no"), TYPE, "literal must be True"),
    "three_phase as text": (lambda: F.one_cycle(1, 5, three_phase="no"), TYPE, "three_phase must"),
    "NaN among the values": (
        lambda: F.hypergradient(torch.tensor([NAN, 1.0]), torch.tensor([0.5, 0.5])),
        VALUE,
        "values_R must be finite",
    ),
    "NaN among the weights": (
        lambda: F.hypergradient(torch.ones(2), torch.tensor([NAN, 0.5])),
        VALUE,
        "weights_R must be finite",
    ),
    "negative norm": (lambda: F.warm_noise_std(-1, 5, 0.01), VALUE, "param_norm"),
    "no parameters": (lambda: F.warm_noise_std(1, 0, 0.01), VALUE, "num_params"),
    "negative noise": (lambda: F.warm_noise_std(1, 5, -0.01), VALUE, "noise_scale"),
    "schedule at a negative step": (lambda: F.cosine(-1, 10), VALUE, "step must be"),
    "schedule of no steps": (lambda: F.linear(0, 0), VALUE, "total_steps"),
    "anneal above one": (lambda: F.hold_then_anneal(0, 10, anneal=1.5), VALUE, "anneal"),
    "negative warmup": (lambda: F.cosine(0, 10, warmup_steps=-1), VALUE, "warmup_steps"),
    "unknown anneal strategy": (
        lambda: F.one_cycle(0, 10, anneal_strategy="exp"),
        VALUE,
        "anneal_strategy must be 'cos' or 'linear', got 'exp'",
    ),
    "pct_start above one": (lambda: F.one_cycle(0, 10, pct_start=2), VALUE, "pct_start"),
    # ------------------------------------------------------------ OneCycleLR
    "not an optimizer": (
        lambda: hdet.OneCycleLR("sgd", 0.1, total_steps=10),
        TYPE,
        r"optimizer must be an instance of Optimizer, got 'sgd' \(str\)",
    ),
    "max_lr of NaN": (lambda: one_cycle(max_lr=NAN), VALUE, "max_lr must be .*got nan"),
    "infinite max_lr": (lambda: one_cycle(max_lr=[INF]), VALUE, "max_lr must be .*got inf"),
    "negative max_lr": (lambda: one_cycle(max_lr=-0.1), VALUE, r"max_lr must be .*got -0\.1"),
    "negative max_lr in a tensor": (
        lambda: one_cycle(max_lr=torch.tensor(-1.0)),
        VALUE,
        r"max_lr must be .*got -1\.0",
    ),
    "max_lr of None": (lambda: one_cycle(max_lr=None), TYPE, "max_lr must be .*None"),
    "OneCycleLR's div_factor of zero": (
        lambda: one_cycle(div_factor=0),
        VALUE,
        "div_factor .*the default is 25",
    ),
    "OneCycleLR's final_div_factor of zero": (
        lambda: one_cycle(final_div_factor=0.0),
        VALUE,
        "final_div_factor .*the default is 1e4",
    ),
    "spread of one": (
        lambda: one_cycle(spread_ratio=1.0),
        VALUE,
        r"spread_ratio.*\[0, 1\), got 1\.0.*lowest replica",
    ),
    "spread list of another length": (
        lambda: one_cycle(optimizer=sgd(groups=2), spread_ratio=[0.1]),
        VALUE,
        "each of the 2 parameter groups, got 1 values",
    ),
    "spread of None": (lambda: one_cycle(spread_ratio=None), TYPE, r"None \(NoneType\)"),
    "cycle of no steps": (
        lambda: one_cycle(cycle_steps=0),
        VALUE,
        "cycle_steps must be an integer >= 1",
    ),
    "cycle of 2.5 steps": (lambda: one_cycle(cycle_steps=2.5), TYPE, r"2\.5 \(float\)"),
    "auto_lr as text": (lambda: one_cycle(auto_lr="yes"), TYPE, "auto_lr must be True or False"),
    "literal_decay as number": (lambda: one_cycle(literal_decay=1), TYPE, "literal_decay"),
    "negative warmup_steps": (lambda: one_cycle(warmup_steps=-1), VALUE, "start_step.*got -1"),
    "temperature of OneCycleLR": (lambda: one_cycle(temperature=-1), VALUE, "temperature"),
    "meta_lr of OneCycleLR": (lambda: one_cycle(meta_lr=NAN), VALUE, "meta_lr"),
    "meta_momentum of OneCycleLR": (lambda: one_cycle(meta_momentum=1.5), VALUE, "meta_momentum"),
    "replicas as a number": (
        lambda: one_cycle(replicas=8),
        TYPE,
        r"replicas must be an instance of AbstractReplicas, got 8 \(int\); pass hdet\.Distributed",
    ),
    "seed as text": (lambda: one_cycle(seed="a"), TYPE, "seed must be an integer"),
    "model as text": (lambda: one_cycle(model="net"), TYPE, "model must be an instance of Module"),
    "a bare step under the controller": (
        lambda: stepped(one_cycle(auto_lr=True)),
        USAGE,
        r"step\(\) needs the training loss.*call step\(loss\), or ensemble\.observe",
    ),
    "a loss that is a vector": (
        lambda: stepped(one_cycle(auto_lr=True), torch.ones(2)),
        VALUE,
        r"loss must be a scalar, got shape \(2,\); reduce it",
    ),
    "a loss of integers": (
        lambda: stepped(one_cycle(auto_lr=True), torch.ones(1, dtype=torch.int64)),
        TYPE,
        "floating-point, got a tensor of torch.int64",
    ),
    "a loss that is text": (lambda: stepped(one_cycle(auto_lr=True), "low"), TYPE, "'low'"),
    "a loss that is True": (lambda: stepped(one_cycle(auto_lr=True), True), TYPE, "True"),
    "one loss for four replicas": (
        lambda: stepped(virtual(), 1.0),
        VALUE,
        r"4 values, one for each replica, got shape \(\).*torch\.stack",
    ),
    "a list of vectors": (
        lambda: stepped(virtual(), [torch.ones(2)] * 4),
        VALUE,
        "each loss must be",
    ),
    "three losses for four replicas": (
        lambda: stepped(virtual(), [1.0, 1.0, 1.0]),
        VALUE,
        r"got shape \(3,\)",
    ),
    "an integer rate": (
        lambda: one_cycle(optimizer=with_rate(torch.tensor(1))),
        TYPE,
        r"lr of parameter group 0.*got tensor\(1\)",
    ),
    "a rate of two elements": (
        lambda: one_cycle(optimizer=with_rate(torch.tensor([0.1, 0.2]))),
        TYPE,
        "one-element floating-point tensor",
    ),
    "a rate that is text": (lambda: one_cycle(optimizer=with_rate("fast")), TYPE, "'fast'"),
    "a rate that is True": (lambda: one_cycle(optimizer=with_rate(True)), TYPE, "True"),
    "the ensemble of a scheduler stepped": (
        lambda: one_cycle().ensemble.step(1.0),
        USAGE,
        r"call scheduler\.step\(loss\)",
    ),
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
    # ------------------------------------------------------------ states
    "a state without its plan": (
        lambda: ensemble().load_state_dict(
            {key: value for key, value in saved().items() if key != "plan"}
        ),
        VALUE,
        r"whole, got one without \['plan'\]",
    ),
    "a state ahead of its step": (
        lambda: ensemble().load_state_dict(saved(converged_step=9)),
        VALUE,
        r"state\['converged_step'\] must be at most state\['step'\], got 9 at step 0",
    ),
    "a state of no hyperparameters": (
        lambda: ensemble().load_state_dict(saved(hyperparameters=None)),
        TYPE,
        r"state\['hyperparameters'\] must be an instance of dict, got None",
    ),
    "a state whose entry is nothing": (
        lambda: ensemble().load_state_dict(saved(hyperparameters={"lr/0": None})),
        TYPE,
        "state of lr/0 must be an instance of dict, got None",
    ),
    "a state without a base value": (
        lambda: ensemble().load_state_dict(saved(hyperparameters={"lr/0": {}})),
        TYPE,
        "state of lr/0: base must be a finite number.*got None",
    ),
    "a state of a NaN base": (
        lambda: ensemble().load_state_dict(entry_of(base=NAN)),
        VALUE,
        "state of lr/0: base must be a finite number.*got nan",
    ),
    "a state of a negative rate": (
        lambda: ensemble().load_state_dict(entry_of(base=-0.1)),
        VALUE,
        r"state of lr/0: base must be .*\[0, inf\], got -0\.1",
    ),
    "a state of an infinite velocity": (
        lambda: ensemble().load_state_dict(entry_of(velocity=INF)),
        VALUE,
        "state of lr/0: velocity",
    ),
    "a state of who knows who controls": (
        lambda: ensemble().load_state_dict(saved(controlled="no")),
        TYPE,
        r"state\['controlled'\] must be True or False",
    ),
    "a state of no plan": (
        lambda: ensemble().load_state_dict(saved(plan=None)),
        TYPE,
        r"state\['plan'\] must be an instance of dict, got None",
    ),
    "a state of an empty plan": (
        lambda: ensemble().load_state_dict(saved(plan={})),
        VALUE,
        r"state\['plan'\]\['initial'\] must be a list of 1 numbers, got None",
    ),
    "a state of a plan for nobody": (
        lambda: ensemble().load_state_dict(saved(plan={"initial": []})),
        VALUE,
        r"a list of 1 numbers, got \[\]",
    ),
    "a state of another kind of plan": (
        lambda: torch_planned().load_state_dict(saved()),
        TYPE,
        r"state\['plan'\]\['step'\] must be an integer >= 0, got None",
    ),
    "a scheduler's state that is nothing": (loading(None), TYPE, "state_dict must be an instance"),
    "a scheduler's state that is empty": (loading({}), VALUE, "state_dict must be a OneCycleLR's"),
    "an ensemble's state for a scheduler": (
        loading(saved()),
        VALUE,
        r"OneCycleLR's, got one without \['_last_lr', 'last_epoch', 'total_steps'\]",
    ),
    "a scheduler's state of other groups": (
        lambda: one_cycle(optimizer=sgd(groups=2)).load_state_dict(one_cycle().state_dict()),
        VALUE,
        "a rate for each of the 2 parameter groups",
    ),
    "a scheduler's state at no step": (
        loading({"last_epoch": None, "total_steps": 10, "_last_lr": [0.1]}),
        TYPE,
        r"state_dict\['last_epoch'\]",
    ),
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


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, kind, message = BAD[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hdet.HDETWarning)  # a controller without a spread
        with pytest.raises(kind, match=message) as caught:
            call()
    assert isinstance(caught.value, HDETError)
    assert isinstance(caught.value, ValueError | TypeError)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value), "it does not say what to do"


def test_there_are_at_least_sixty() -> None:
    assert len(BAD) >= 60


def test_a_refused_call_leaves_the_optimizer_as_it_was() -> None:
    optimizer = sgd()
    before = dict(optimizer.param_groups[0])
    with pytest.raises(InvalidValueError):
        one_cycle(optimizer=optimizer, cycle_steps=0)
    assert dict(optimizer.param_groups[0]) == before


def test_a_refused_state_leaves_the_ensemble_as_it_was() -> None:
    live = ensemble()
    before = live.state_dict()
    with pytest.raises(InvalidValueError):
        live.load_state_dict(saved(hyperparameters={"lr/7": {"base": 1.0}}))
    assert live.state_dict() == before


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidTypeError) as caught:
        F.spread_multipliers("x" * 1000, 0.1)
    assert len(str(caught.value)) < 200
