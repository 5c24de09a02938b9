"""Bad input to `OneCycleLR` and to its `step`."""

from __future__ import annotations

import torch

import hdet
from tests.bad_input.builders import (
    INF,
    NAN,
    TYPE,
    USAGE,
    VALUE,
    Case,
    one_cycle,
    sgd,
    stepped,
    virtual,
    with_rate,
)

CASES: dict[str, Case] = {
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
}
