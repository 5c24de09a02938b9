"""Stacked parameters and gradients, the lanes that are views of them, and how they are computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.stacked.model import Params, stacked_losses

LossFunction = Callable[[Params, torch.Tensor], torch.Tensor]
TOLERANCE = 0.05
"""How far compiled gradients in bfloat16 may be from uncompiled ones, relative to their norm."""


class Lane(nn.Module):
    """One configuration's parameters: views of the stack, in the model's own order.

    Args:
        stack: the stack.
        index: which part of it.
    """

    def __init__(self, stack: Stack, index: int) -> None:
        super().__init__()
        own = [nn.Parameter(stacked.detach()[index]) for stacked in stack.params.values()]
        self.values = nn.ParameterList(own)
        self._pairs = [
            (param, gradient[index]) for param, gradient in zip(own, stack.gradients, strict=True)
        ]

    def take_gradients(self) -> None:
        """See the stack's; `optimizer.zero_grad()` has let go of them."""
        for param, gradient in self._pairs:
            param.grad = gradient


class Stack:
    """C copies of a model's parameters along a new leading dimension, and their gradients.

    Args:
        model: whose values all lanes start from.
        num_lanes: C.
        device: where the stack lies.
    """

    def __init__(self, model: nn.Module, num_lanes: int, device: torch.device) -> None:
        self.params: dict[str, torch.Tensor] = {}
        self.gradients: list[torch.Tensor] = []
        for name, param in model.named_parameters():
            stacked = param.detach().to(device).expand(num_lanes, *param.shape).clone()
            # Kept for the whole run: backward adds to it in place, and the lanes' views stay good.
            stacked.grad = torch.zeros_like(stacked)
            self.params[name] = stacked.requires_grad_()
            self.gradients.append(stacked.grad)
        self.lanes = [Lane(self, index) for index in range(num_lanes)]

    def backward(self, losses_C: torch.Tensor) -> None:
        """Each lane's gradient of its own loss; the lanes share no parameter."""
        torch._foreach_zero_(self.gradients)
        torch.autograd.backward(losses_C.sum())

    @torch.no_grad()
    def clip_(self, max_norm: float) -> None:
        """`clip_grad_norm_` of each lane on its own."""
        norms_PC = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in self.gradients]
        norm_C = torch.linalg.vector_norm(torch.stack(norms_PC), dim=0)
        factor_C = (max_norm / (norm_C + 1e-6)).clamp(max=1.0)
        for gradient in self.gradients:
            gradient.mul_(factor_C.view(-1, *[1] * (gradient.dim() - 1)))

    @torch.no_grad()
    def validate(self, batches: list[tuple[torch.Tensor, ...]]) -> list[float]:
        """Mean loss of each lane on equal batches, in float32 whatever training takes."""
        losses_NC = [stacked_losses(self.params, batch[0]) for batch in batches]
        means: list[float] = torch.stack(losses_NC).double().mean(dim=0).tolist()
        return means


class Engine:
    """How losses are computed: in which precision, and whether compiled.

    Args:
        device: of the stack.
        half: bfloat16 by autocast.
        compiled: try `torch.compile`, which is given up where it fails or disagrees.
        say: takes a line of progress.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        half: bool,
        compiled: bool,
        say: Callable[[str], None] = print,
    ) -> None:
        self.device, self.half = device, half
        self._say = say
        self._losses: LossFunction = self._plain
        self._tried: set[int] = set()
        self.compiled = compiled

    def losses(self, params: Params, windows: torch.Tensor) -> torch.Tensor:
        """`stacked_losses`, with a gradient."""
        return self._losses(params, windows)

    def _plain(self, params: Params, windows: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.half):
            return stacked_losses(params, windows)

    def prepare(self, model: nn.Module, num_lanes: int, windows: torch.Tensor) -> None:
        """Compile for this many lanes, and compare one step with the uncompiled one."""
        if not self.compiled or num_lanes in self._tried:
            return
        self._tried.add(num_lanes)
        try:
            self._losses = torch.compile(self._plain, dynamic=False, fullgraph=True)
            distance = self._distance(Stack(model, num_lanes, self.device), windows)
        except Exception as error:  # whatever a compiler may lack on a machine
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        else:
            self._say(f"compiled for {num_lanes} lanes, gradients {distance:.2g} from uncompiled")
            if distance < TOLERANCE:
                return
            reason = "they disagree"
        self._say(f"not compiled: {reason}")
        self.compiled, self._losses = False, self._plain

    def _distance(self, stack: Stack, windows: torch.Tensor) -> float:
        """Of the compiled gradients from the plain ones, relative to their norm; NaN fails."""
        sides = []
        for function in (self._plain, self._losses):
            stack.backward(function(stack.params, windows))
            sides.append(torch.cat([gradient.flatten() for gradient in stack.gradients]))
        plain, compiled = sides
        return float((compiled - plain).norm() / plain.norm())
