"""What the method must know of an optimiser, read off its class and its groups.

With shared gradients all replicas see the same gradient, so two facts decide how much work they
need (``docs/method.md``, "facts that follow"):

* *the state ignores the parameters*: no parameter value flows into momentum or second moments. Then
  the state is identical on all replicas and converge leaves it alone. Coupled L2 (``weight_decay``
  of SGD and Adam) breaks this: it adds the parameters to the gradient.
* *the update is a line in the rate*: the step is the rate times something that depends on neither
  the rate nor the parameters. Then replica r stands at theta_sync + rho_r * D, and N replicas are
  held as two copies. Any weight decay breaks this, the decoupled kind too.

An optimiser that is not in the table is assumed to have neither property, which is always right and
costs more. Matching is by exact class: a subclass may override the update.
"""

from __future__ import annotations

import inspect
from typing import NamedTuple

import torch

from hdet import tensors


class _Traits(NamedTuple):
    decoupled: bool
    """Whether weight decay acts on the parameters only, not through the gradient."""


# Left out on purpose: Rprop and ASGD keep the rate in their state, Adafactor and LBFGS scale the
# update by the parameters or evaluate them again, SparseAdam takes gradients that are not averaged.
_COUPLED = (
    torch.optim.SGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
)
_TRAITS: dict[type, _Traits] = {
    **{kind: _Traits(decoupled=False) for kind in _COUPLED},
    torch.optim.AdamW: _Traits(decoupled=True),
    torch.optim.Muon: _Traits(decoupled=True),
}


def state_ignores_parameters(optimizer: torch.optim.Optimizer) -> bool:
    """Whether shared gradients keep the state identical on replicas whose parameters differ."""
    traits = _TRAITS.get(type(optimizer))
    return traits is not None and all(
        traits.decoupled
        or group.get("decoupled_weight_decay", False)
        or group.get("weight_decay", 0.0) == 0.0
        for group in optimizer.param_groups
    )


def update_is_linear_in_rate(optimizer: torch.optim.Optimizer) -> bool:
    """Whether shared gradients keep the replicas on theta_sync + rho_r * D, to rounding."""
    return type(optimizer) in _TRAITS and all(
        group.get("weight_decay", 0.0) == 0.0 for group in optimizer.param_groups
    )


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step has no gradient to start from but evaluates a closure, as LBFGS does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All parameters in the optimiser's groups, in order; torch refuses duplicates."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def settings(optimizer: torch.optim.Optimizer) -> list[str]:
    """Each group's settings but its rate, a line each: what replicas must agree on.

    A setting is what a constructor takes. What an optimiser keeps in its groups while it runs, such
    as the step size that Prodigy finds, may differ between replicas.
    """
    names = {
        name for kind in type(optimizer).__mro__ for name in inspect.signature(kind).parameters
    }
    return [
        f"group {index}: {name}={group[name]!r}"
        for index, group in enumerate(optimizer.param_groups)
        for name in sorted(names & set(group) - {"params", "lr"})
        if isinstance(group[name], bool | int | float | str | tuple | None)
    ]


def averaged_state(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> list[str]:
    """The entries of a parameter's state that a mean over replicas is made of, in a fixed order.

    Floating-point tensors, but not the scalars that count steps: they are equal on all replicas.
    """
    names = []
    for name, value in sorted(optimizer.state.get(param, {}).items()):
        if isinstance(value, torch.Tensor) and tensors.is_averaged(value):
            of_scalar = param.dim() == 0 and value.device == param.device and name != "step"
            if value.dim() > 0 or of_scalar:
                names.append(name)
    return names
