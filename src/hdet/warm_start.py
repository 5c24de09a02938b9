"""The warm noisy start (Eq. 10): replicas that leave a checkpoint in different directions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from hdet import checks, functional
from hdet.errors import InvalidTypeError, InvalidValueError
from hdet.replicas import AbstractReplicas, resolve


def warm_start_(
    model: torch.nn.Module,
    noise_scale: float = 0.01,
    seed: int = 0,
    replicas: AbstractReplicas | None = None,
    *,
    per_tensor: bool = False,
) -> None:
    r"""Eq. 10: $\theta_r = \theta_0 + \epsilon$, $\epsilon \sim N(0, \nu^2 \|\theta_0\|^2 / d)$.

    In place; call it once, after loading a checkpoint and, under DDP, after wrapping the model,
    because DDP gives every rank rank 0's parameters. Each replica gets its own noise from a
    generator keyed by (seed, replica, parameter); nobody else's random state is read or moved.
    Frozen parameters (``requires_grad=False``) are left alone and do not count in the norm,
    because converge skips them.

    Args:
        model: whose parameters to perturb.
        noise_scale: nu, at least 0; the paper uses 0.01.
        seed: keys the noise; the same on all replicas.
        replicas: the same object that the scheduler gets, or None for the default process group.
            Where the scheduler has no spread, only the same object lets it know that there is
            something to average.
        per_tensor: use each tensor's own norm and size in place of the global ones, so that small
            tensors (biases, norms) are not drowned by noise scaled to the whole model.
    """
    checks.instance("model", model, torch.nn.Module, remedy="pass the module that is trained")
    noise_scale = checks.real("noise_scale", noise_scale, low=0.0, remedy="the paper uses 0.01")
    seed = checks.seed(seed)
    checks.boolean("per_tensor", per_tensor)
    params = _perturbable(model)
    stds = _stds(params, noise_scale, per_tensor=per_tensor)

    def noise(replica: int, index: int, param: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator(device=param.device)
        generator.manual_seed(_key(seed, replica, index))
        # Drawn in float32 at least: narrower generators have a coarse tail.
        dtype = torch.float32 if param.dtype.itemsize < 4 else param.dtype
        draw = torch.randn(param.shape, generator=generator, device=param.device, dtype=dtype)
        return draw.mul_(stds[index]).to(param.dtype)

    with torch.no_grad():
        resolve(replicas, explores=False, controls=False).perturb_(params, noise)


def _perturbable(model: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters that noise is added to, if it can be added to all of them."""
    params: list[torch.Tensor] = []
    for name, param in model.named_parameters():
        if param.requires_grad:
            _check_perturbable(name, param)
            params.append(param)
    params = [param for param in params if param.numel() > 0]
    if not params:
        raise InvalidValueError(
            "model must have parameters that require a gradient, got none; unfreeze some"
        )
    return params


def _check_perturbable(name: str, param: torch.Tensor) -> None:
    if isinstance(param, torch.nn.parameter.UninitializedParameter):
        got, remedy = "one without a shape yet", "run the model on a batch first"
    elif hasattr(param, "device_mesh"):
        got, remedy = "a DTensor", "call warm_start_ before fully_shard()"
    elif param.is_meta:
        got, remedy = "a meta tensor", "load the checkpoint first"
    elif param.layout != torch.strided:
        got, remedy = f"layout {param.layout}", "freeze it, or use a dense parameter"
    elif param.dtype.itemsize < torch.float16.itemsize:
        got, remedy = f"{param.dtype}", "freeze it, or warm-start before quantising"
    else:
        return
    raise InvalidTypeError(
        f"parameters must be whole, dense and of 16 bits at least, got {got} as {name}; {remedy}"
    )


def _stds(params: Sequence[torch.Tensor], noise_scale: float, *, per_tensor: bool) -> list[float]:
    norms = [float(torch.linalg.vector_norm(_wide(param.detach()))) for param in params]
    sizes = [param.numel() for param in params]
    if per_tensor:
        return [
            functional.warm_noise_std(norm, size, noise_scale)
            for norm, size in zip(norms, sizes, strict=True)
        ]
    global_norm = float(torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64)))
    return [functional.warm_noise_std(global_norm, sum(sizes), noise_scale)] * len(params)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def _key(seed: int, replica: int, index: int) -> int:
    text = f"hdet warm start {seed} {replica} {index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
