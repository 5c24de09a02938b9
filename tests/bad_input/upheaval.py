"""What is changed under a scheduler after it was built, and calls in an order that cannot work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import hdet
from tests.bad_input.builders import (
    TYPE,
    USAGE,
    VALUE,
    Case,
    auto_lr,
    ensemble,
    one_cycle,
    saved,
    sgd,
    stepped,
    virtual,
)


def explored(optimizer: torch.optim.Optimizer) -> hdet.OneCycleLR:
    replicas = hdet.VirtualReplicas(2)
    return one_cycle(optimizer=optimizer, spread_ratio=0.1, cycle_steps=2, replicas=replicas)


def general(optimizer: torch.optim.Optimizer) -> hdet.Ensemble:
    rates = [hdet.LearningRate(group, spread_ratio=0.1) for group in range(2)]
    replicas = hdet.VirtualReplicas(2)
    return ensemble(optimizer=optimizer, hyperparameters=rates, cycle_steps=2, replicas=replicas)


KINDS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "OneCycleLR": lambda optimizer: one_cycle(optimizer=optimizer),
    "OneCycleLR with a spread": explored,
    "AutoLR": lambda optimizer: auto_lr(optimizer=optimizer),
    "Ensemble": general,
}


def trained(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)
    optimizer.step()


def after(kind: str, change: Callable[[Any, torch.optim.Optimizer], None]) -> None:
    """A step, the change, another step."""
    optimizer = sgd(groups=2)
    scheduler = KINDS[kind](optimizer)
    trained(optimizer)
    scheduler.step()
    trained(optimizer)
    change(scheduler, optimizer)
    scheduler.step()


def lost_group(_: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups.pop()


def lost_rate(_: Any, optimizer: torch.optim.Optimizer) -> None:
    del optimizer.param_groups[1]["lr"]


def text_for_a_rate(_: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[1]["lr"] = "fast"


def lost_parameters(_: Any, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["params"].clear()


def another_optimizer(scheduler: Any, _: torch.optim.Optimizer) -> None:
    scheduler.optimizer = sgd(groups=2)


def an_empty_one(_: Any, optimizer: torch.optim.Optimizer) -> None:
    del optimizer.param_groups[:]


def replaced_groups(_: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups = sgd(groups=2).param_groups


CHANGES: dict[str, tuple[Callable[..., None], type[hdet.HDETError], str, str]] = {
    "a group lost": (lost_group, VALUE, r"group", r"the 2 parameter groups .* got 1"),
    "a rate lost": (
        lost_rate,
        TYPE,
        r"the lr of parameter group 1 must be a float.*got None",
        r"the lr of parameter group 1 must be a float.*got None",
    ),
    "text for a rate": (text_for_a_rate, TYPE, "group 1 must be a float.*'fast'", "'fast'"),
    "all parameters lost": (
        lost_parameters,
        USAGE,
        "optimizer must keep its parameters, got 2 groups without any",
        "optimizer must keep its parameters, got 2 groups without any",
    ),
    "another optimizer under it": (
        another_optimizer,
        USAGE,
        "optimizer must stay the .*built on, got another SGD; build a new scheduler",
        "optimizer must stay the .*built on, got another SGD; build a new scheduler",
    ),
    "an optimizer emptied": (
        an_empty_one,
        USAGE,
        "optimizer must keep its parameters, got 0 groups",
        "the 2 parameter groups .* got 0",
    ),
}


def _changed() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for kind in KINDS:
        for name, (change, error, general_line, line) in CHANGES.items():
            is_counted = kind != "Ensemble" and name in ("a group lost", "an optimizer emptied")
            found[f"{name} after {kind} was built"] = (
                lambda kind=kind, change=change: after(kind, change),
                USAGE if is_counted else error,
                general_line if kind == "Ensemble" else line,
            )
    return found


def sampled(change: Callable[[torch.optim.Optimizer], None]) -> Callable[[], None]:
    """`AutoLR` follows the parameters that it was built with."""

    def call() -> None:
        optimizer = sgd(groups=2)
        scheduler = auto_lr(optimizer=optimizer)
        for _ in range(6):
            trained(optimizer)
            scheduler.step()
            change(optimizer)

    return call


def swapped(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[1]["params"][0] = nn.Parameter(torch.ones(2))


def dropped(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[1]["params"].clear()


def appended(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(2)))


def reshaped(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"][0].data = torch.ones(5)
    optimizer.state.clear()


def inside_the_loop(call: Callable[[hdet.Ensemble], Any]) -> Callable[[], None]:
    def loop() -> None:
        live = virtual(cycle_steps=1)
        for _ in live.fan_out(torch.ones(8, 2)):
            call(live)

    return loop


KEPT = r"the optimizer must keep the 1 parameters of each group.*got [0-2] that differ; build"
_LOSSES = {
    "on the meta device": torch.ones(4, device="meta"),
    "that is sparse": torch.ones(4).to_sparse(),
    "of 8 bits": torch.ones(4).to(torch.float8_e4m3fn),
}
CASES: dict[str, Case] = {
    **_changed(),
    **{
        f"groups replaced under {kind}": (
            lambda kind=kind: after(kind, replaced_groups),
            USAGE,
            "parameter group 0 must be the one .*without initial_lr at step 1; change",
        )
        for kind in ("OneCycleLR", "OneCycleLR with a spread", "AutoLR")
    },
    **{
        f"a parameter {name} under AutoLR": (sampled(change), USAGE, KEPT)
        for name, change in (
            ("swapped", swapped),
            ("deleted", dropped),
            ("appended", appended),
            ("of another shape", reshaped),
        )
    },
    **{
        f"{name} inside fan_out()": (
            inside_the_loop(call),
            USAGE,
            rf"{name}\(\) was called inside fan_out\(\); call it after the loop",
        )
        for name, call in (
            ("step", lambda live: live.step(torch.ones(4))),
            ("converge", lambda live: live.converge()),
            ("fan_out", lambda live: next(live.fan_out(torch.ones(8, 2)))),
            ("load_state_dict", lambda live: live.load_state_dict(live.state_dict())),
        )
    },
    **{
        f"a loss {name}": (
            lambda loss=loss: stepped(virtual(), loss),
            TYPE,
            "loss must be a dense tensor that holds numbers of 16 bits or more, got",
        )
        for name, loss in _LOSSES.items()
    },
    **{
        f"an epoch of {epoch!r} of {name}": (
            lambda build=build, epoch=epoch: build().step(epoch=epoch),
            kind,
            "epoch must be an integer >= 0.*, got",
        )
        for name, build in (("OneCycleLR", one_cycle), ("AutoLR", auto_lr))
        for epoch, kind in (("a", TYPE), (2.5, TYPE), (-5, VALUE), (10**30, VALUE))
    },
    **{
        f"a {name} of {value!r}": (
            lambda name=name, value=value: one_cycle(**{name: value}),
            kind,
            f"{name} must be a finite number in .*0.85 and 0.95",
        )
        for name in ("base_momentum", "max_momentum")
        for value, kind in (("a", TYPE), (-0.5, VALUE), (1.5, VALUE), (True, TYPE))
    },
    "parameters on the meta device for AutoLR": (
        lambda: auto_lr(
            optimizer=torch.optim.SGD([nn.Parameter(torch.ones(2, device="meta"))], lr=0.1)
        ),
        TYPE,
        "parameters must hold numbers to be followed, got one on the meta device",
    ),
    "an optimizer of parameters without a shape": (
        lambda: hdet.AutoLR(torch.optim.SGD(nn.LazyLinear(2).parameters(), lr=0.1), 10),
        TYPE,
        "without a shape yet; load the checkpoint, or run the model once",
    ),
    "an integer that nothing can hold": (
        lambda: ensemble().load_state_dict(saved(step=10**30, converged_step=0)),
        VALUE,
        r"state\['step'\] must be an integer >= 0 and below 2\*\*63, got 1000",
    ),
    "a number beyond all floats": (
        lambda: one_cycle(max_lr=10**400),
        VALUE,
        r"max_lr must be a finite number in \[0, inf\], got 1000",
    ),
}
