"""Bad input to `AutoLR`, to signals that tell a slope, and to controllers that use one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import hdet
from hdet import functional as F  # noqa: N812
from tests.bad_input.builders import (
    INF,
    NAN,
    ONES,
    TYPE,
    USAGE,
    VALUE,
    Case,
    auto_lr,
    ensemble,
    one_cycle,
    sgd,
    stepped,
    with_rate,
)


def probe(batches: Any = (1.0,)) -> hdet.Probe:
    return hdet.Probe(lambda batch: torch.tensor(batch), batches)


def annealed(num_steps: Any) -> None:
    auto_lr().anneal(num_steps)


def sparse_step() -> None:
    table = nn.Embedding(3, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    scheduler = hdet.AutoLR(optimizer, 10)
    table(torch.tensor([1])).sum().backward()
    scheduler.optimizer.step()


def lbfgs() -> torch.optim.Optimizer:
    return torch.optim.LBFGS([nn.Parameter(torch.ones(2))])


def two_rates(*rates: Any) -> torch.optim.Optimizer:
    optimizer = sgd(groups=2)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return optimizer


def past_the_end() -> None:
    scheduler = auto_lr(total_steps=1)
    stepped(scheduler)
    stepped(scheduler)


CASES: dict[str, Case] = {
    # ------------------------------------------------------------ AutoLR
    "AutoLR of no optimizer": (lambda: hdet.AutoLR("sgd"), TYPE, "optimizer must be an instance"),
    "AutoLR of no steps": (lambda: auto_lr(total_steps=0), VALUE, "total_steps .*>= 1, got 0"),
    "AutoLR of 2.5 steps": (lambda: auto_lr(total_steps=2.5), TYPE, r"total_steps.*2\.5"),
    **{
        f"AutoLR with {name}": (
            lambda name=name: auto_lr(**{name: 0.1}),
            TYPE,
            rf"AutoLR takes no learning rate, got {name}=0\.1; leave it out.*bounds=.*OneCycleLR",
        )
        for name in ("lr", "max_lr", "base_lr", "learning_rate")
    },
    "AutoLR of LBFGS": (
        lambda: hdet.AutoLR(lbfgs()),
        TYPE,
        r"optimizer must step from one gradient for LongHorizon.*got LBFGS, .*AdamW",
    ),
    "an ensemble that balances LBFGS": (
        lambda: ensemble(
            optimizer=lbfgs(),
            controller=hdet.LongHorizonController(),
            signal=hdet.GradientProduct(),
        ),
        TYPE,
        "optimizer must step from one gradient for LongHorizon.*got LBFGS",
    ),
    "AutoLR with a loss for a probe": (
        lambda: auto_lr(probe=lambda batch: batch),
        TYPE,
        r"probe must be an instance of Probe.*pass hdet\.Probe\(loss, batches\)",
    ),
    "an anneal of the whole run": (
        lambda: auto_lr(anneal=1.0),
        VALUE,
        r"anneal must be a finite number in \[0, 1\), got 1\.0.*the default is 0.4",
    ),
    "a negative anneal": (lambda: auto_lr(anneal=-0.1), VALUE, "anneal.*got -0.1"),
    "an anneal of text": (lambda: auto_lr(anneal="half"), TYPE, "anneal.*'half'"),
    "relative_rates as a number": (lambda: auto_lr(relative_rates=1), TYPE, "relative_rates"),
    "per_group as a number": (lambda: auto_lr(per_group=1), TYPE, "per_group must be True or"),
    "bounds of AutoLR upside down": (lambda: auto_lr(bounds=(1, 0.1)), VALUE, "low < high"),
    "bounds of AutoLR that meet": (
        lambda: auto_lr(bounds=(1e-3, 1e-3)),
        VALUE,
        r"bounds must have low < high, got \(0\.001, 0\.001\); a value that is to stay",
    ),
    "bounds of AutoLR that are NaN": (
        lambda: auto_lr(bounds=(NAN, 1e-3)),
        VALUE,
        r"bounds must have low < high, got \(nan, 0\.001\); pass for example",
    ),
    "bounds of AutoLR as text": (lambda: auto_lr(bounds=("a", 1)), TYPE, "bounds must be two num"),
    "bounds of AutoLR as one number": (lambda: auto_lr(bounds=0.1), VALUE, "bounds must be a pair"),
    "negative bounds of AutoLR": (lambda: auto_lr(bounds=(-1, 1)), VALUE, "must not be negative"),
    "a controller for AutoLR that is text": (
        lambda: auto_lr(controller="long"),
        TYPE,
        "controller must be an instance of AbstractController",
    ),
    "a controller for AutoLR without a start": (
        lambda: auto_lr(controller=hdet.PaperController()),
        VALUE,
        "controller must start from a value of its own, got PaperController",
    ),
    "a signal for AutoLR that is text": (
        lambda: auto_lr(signal="gradient"),
        TYPE,
        "signal must be an instance of AbstractSignal",
    ),
    "a signal for AutoLR without a slope": (
        lambda: auto_lr(signal=hdet.TrainingLoss()),
        VALUE,
        r"signal must tell a slope for LongHorizon.*got TrainingLoss; pass signal=hdet\.Gradient",
    ),
    "a signal beside a probe": (
        lambda: auto_lr(signal=hdet.GradientProduct(), probe=probe()),
        VALUE,
        "signal must stand alone.*give those to the signal itself",
    ),
    "AutoLR's seed as text": (lambda: auto_lr(seed="a"), TYPE, "seed must be an integer"),
    "AutoLR's model as text": (lambda: auto_lr(model="net"), TYPE, "model must be an instance"),
    "AutoLR's replicas as a number": (lambda: auto_lr(replicas=2), TYPE, "replicas must be an"),
    "AutoLR's spread of one": (lambda: auto_lr(spread_ratio=1.0), VALUE, r"spread_ratio.*\[0, 1\)"),
    "relative rates that are all zero": (
        lambda: auto_lr(optimizer=with_rate(0.0)),
        VALUE,
        r"the groups' lr must be relative rates.*got \[0\.0\]; leave PyTorch's default",
    ),
    "a relative rate of NaN": (
        lambda: auto_lr(optimizer=two_rates(0.1, NAN)),
        VALUE,
        r"relative rates.*got \[0\.1, nan\]",
    ),
    "a relative rate that is infinite": (
        lambda: auto_lr(optimizer=two_rates(INF, 0.1)),
        VALUE,
        r"relative rates.*got \[inf, 0\.1\]",
    ),
    "a negative relative rate": (
        lambda: auto_lr(optimizer=two_rates(-0.1, 0.1)),
        VALUE,
        r"relative rates.*got \[-0\.1, 0\.1\]",
    ),
    "an anneal over no steps": (lambda: annealed(0), VALUE, "num_steps must be an integer >= 1"),
    "an anneal over 2.5 steps": (lambda: annealed(2.5), TYPE, r"num_steps.*2\.5 \(float\)"),
    "AutoLR past its end": (past_the_end, USAGE, "called 2 times, and total_steps is 1"),
    "a loss of AutoLR that is text": (lambda: stepped(auto_lr(), "low"), TYPE, "'low'"),
    "gradients that are sparse": (
        sparse_step,
        TYPE,
        r"a gradient must be a dense \(strided\) tensor.*torch\.sparse_coo",
    ),
    "OneCycleLR's relative_temperature as text": (
        lambda: one_cycle(relative_temperature="yes"),
        TYPE,
        "relative_temperature must be True or False",
    ),
    # ------------------------------------------------------------ signals
    "a noise_price above one": (
        lambda: hdet.GradientProduct(noise_price=1.5),
        VALUE,
        r"noise_price.*\[0, 1\], got 1\.5",
    ),
    "a recent_window of zero": (
        lambda: hdet.GradientProduct(recent_window=0.0),
        VALUE,
        r"recent_window.*\(0, 1\], got 0\.0",
    ),
    "windows in the wrong order": (
        lambda: hdet.GradientProduct(recent_window=0.5, older_window=0.4),
        VALUE,
        r"older_window.*got 0\.4.*further than recent_window",
    ),
    "one sample a cycle": (
        lambda: hdet.GradientProduct(num_samples=1),
        VALUE,
        "num_samples must be an integer >= 2, got 1",
    ),
    "a signal's per_group as text": (
        lambda: hdet.GradientProduct(per_group="no"),
        TYPE,
        "per_group must be True or False",
    ),
    "a probe without a loss": (
        lambda: hdet.Probe(1.0, [1]),
        TYPE,
        r"loss must be a function from a batch to a scalar, got 1\.0",
    ),
    "a probe of one batch": (lambda: hdet.Probe(abs, 3), TYPE, "batches must be an instance of It"),
    "a probe without batches": (lambda: probe([]).draw(), VALUE, "at least one batch each time"),
    "a probe whose loss is a vector": (
        lambda: probe().evaluate([1.0, 2.0]),
        VALUE,
        r"loss must be a scalar, got shape \(2,\)",
    ),
    "a paired probe of a list": (
        lambda: hdet.PairedProbe([1.0]),
        TYPE,
        r"probe must be an instance of Probe, got \[1\.0\]",
    ),
    "a single pair": (lambda: hdet.PairedProbe(probe(), num_pairs=1), VALUE, "num_pairs.*>= 2"),
    "a displacement of one": (
        lambda: hdet.PairedProbe(probe(), displacement=1.0),
        VALUE,
        r"displacement.*\(0, 1\), got 1\.0",
    ),
    "a probed cycle of no steps": (
        lambda: hdet.PairedProbe(probe(), min_steps=0),
        VALUE,
        "min_steps must be an integer >= 1",
    ),
    **{
        f"a reference_device of {value} of {where}": (
            lambda call=call, value=value: call(reference_device=value),
            kind,
            rf"^reference_device must be None or a device of torch's on .*, got '?{value}'? \(",
        )
        for where, call in (
            ("AutoLR", auto_lr),
            ("AutoLR with a probe", lambda **own: auto_lr(probe=probe(), **own)),
            ("GradientProduct", hdet.GradientProduct),
            ("PairedProbe", lambda **own: hdet.PairedProbe(probe(), **own)),
        )
        for value, kind in (("gpu", VALUE), ("cuda:99", VALUE), ("meta", VALUE), (0, TYPE))
    },
    # ------------------------------------------------------------ controllers
    **{
        f"LongHorizonController's {name} of {value}": (
            lambda name=name, value=value: hdet.LongHorizonController(**{name: value}),
            VALUE,
            f"{name} must be an? .*got {value}",
        )
        for name, value in (
            ("start_value", 0.0),
            ("start_value", INF),
            ("climb_stride", 0.0),
            ("leap_stride", 0.1),
            ("leap_below", -1.0),
            ("climb_steps", 2),
            ("climb_end", 0),
            ("back_off", 0.0),
            ("back_off", 1.1),
            ("settle", 0.9),
            ("stride", -0.1),
            ("patience", 0.0),
            ("patience", INF),
            ("doubt", NAN),
            ("cycle_steps", 2),
            ("cycle_growth", -0.1),
        )
    },
    "a slope for whoever has none": (
        lambda: ensemble(controller=hdet.LongHorizonController()),
        VALUE,
        r"signal must tell a slope.*got TrainingLoss",
    ),
    "a wrapper around nothing": (lambda: hdet.Gated(None), TYPE, "controller must be an instance"),
    "bounds of one value": (
        lambda: hdet.Bounded(hdet.FixedController(), 1.0, 1.0),
        VALUE,
        r"high must be a finite number in \(1, inf\], got 1\.0",
    ),
    "a gate of NaN": (lambda: hdet.Gated(hdet.FixedController(), NAN), VALUE, "min_significance"),
    "a cool-down of no cycles": (
        lambda: hdet.CoolDown(hdet.FixedController(), 0),
        VALUE,
        "num_cycles must be an integer >= 1, got 0",
    ),
    "relative_temperature as a number": (
        lambda: hdet.PaperController(relative_temperature=1),
        TYPE,
        "relative_temperature must be True or False",
    ),
    # ------------------------------------------------------------ equations
    "a step of a negative stride": (
        lambda: F.significance_step(1.0, 1.0, stride=-1.0, doubt=1.0),
        VALUE,
        r"stride.*got -1\.0",
    ),
    "a step of infinite doubt": (
        lambda: F.significance_step(1.0, 1.0, stride=1.0, doubt=INF),
        VALUE,
        "doubt.*got inf",
    ),
    "a certainty of negative doubt": (
        lambda: F.certainty(1.0, doubt=-1.0),
        VALUE,
        r"doubt.*got -1\.0",
    ),
    "a regression of two": (
        lambda: F.regression_slope([1.0, 2.0], [1.0, 2.0]),
        VALUE,
        r"at least three values above 0, got \[1\.0, 2\.0\]",
    ),
    "a regression over a rate of zero": (
        lambda: F.regression_slope([0.0, 1.0, 2.0], ONES),
        VALUE,
        r"above 0, got \[0\.0, 1\.0, 2\.0\]",
    ),
    "a regression of NaN": (
        lambda: F.regression_slope(ONES, [1.0, NAN, 2.0]),
        VALUE,
        "losses_R must be finite",
    ),
}
