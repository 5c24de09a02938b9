"""`Probe`: a loss that can be asked for at other points than the one the training stands at."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from hdet import checks
from hdet.errors import InvalidTypeError, InvalidValueError
from hdet.signals.losses import read_losses


class Probe:
    """The user's loss on batches of the user's choice.

    The loss runs in whatever mode the model is in. What it disturbs is put back: buffers of the
    modules it calls, such as BatchNorm's statistics, and torch's random state on the CPU and the
    device; both members of a pair see the same random numbers.

    Args:
        loss: batch -> scalar loss, for example ``lambda batch: loss_fn(model, batch)``. Called
            without gradients.
        batches: any iterable of batches, started again at its end. Held-out batches make a probe
            see overfitting; training batches ahead of the run will do. A run that is resumed goes
            on where they stood: at once in a sequence, else by drawing as many again, so that an
            iterable must come in the same order when it is built anew. A DataLoader that shuffles
            does so with a ``generator`` of its own and a fixed seed.
    """

    def __init__(self, loss: Callable[[Any], torch.Tensor], batches: Iterable[Any]) -> None:
        if not callable(loss):
            raise InvalidTypeError(
                f"loss must be a function from a batch to a scalar, got {reprlib.repr(loss)}; pass "
                "for example lambda batch: loss_fn(model, batch)"
            )
        checks.instance("batches", batches, Iterable, remedy="pass a DataLoader or a list")
        self._loss = loss
        self._batches = batches
        self._iterator: Iterator[Any] | None = None
        self._num_drawn = self._num_to_skip = 0

    @property
    def num_drawn(self) -> int:
        """Batches drawn so far: where the probe stands."""
        return self._num_drawn

    def seek(self, num_drawn: int) -> None:
        """Go to where a probe stands that has drawn ``num_drawn`` batches; none is loaded yet."""
        if num_drawn == self._num_drawn:
            return
        if isinstance(self._batches, Iterator):  # it cannot start again
            self._num_to_skip += max(num_drawn - self._num_drawn, 0)
        else:
            self._iterator, self._num_to_skip = None, num_drawn
        self._num_drawn = num_drawn

    def draw(self) -> Any:
        """The next batch."""
        if self._num_to_skip > 0:
            self._skip()
        batch = self._next()
        self._num_drawn += 1
        return batch

    def _skip(self) -> None:
        if isinstance(self._batches, Sequence) and len(self._batches) > 0:
            rest = range(self._num_to_skip % len(self._batches), len(self._batches))
            self._iterator = map(self._batches.__getitem__, rest)
        else:
            # What was drawn before a restart is not drawn from the generator for a second time.
            with torch.random.fork_rng(devices=[]):
                for _ in range(self._num_to_skip):
                    self._next()
        self._num_to_skip = 0

    def _next(self) -> Any:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self._batches)
            for batch in self._iterator:
                return batch
            self._iterator = None
        raise InvalidValueError(
            "batches must hold at least one batch each time it is started, got an iterable that is "
            "empty; pass a list or a DataLoader rather than a generator"
        )

    def evaluate(self, batch: Any) -> torch.Tensor:
        """The loss at the point where the parameters stand, a scalar that is not waited for."""
        return read_losses(self._loss(batch), 1)[0]

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes on where the original stands."""
        if isinstance(self._batches, Iterator):
            return {**self.__dict__, "_iterator": None}
        return {**self.__dict__, "_iterator": None, "_num_to_skip": self._num_drawn}


def same_versions(written: Sequence[torch.Tensor]) -> Any:
    """A context that writes to tensors and puts back what stood there, to the last bit.

    Torch counts writes, and whoever asks whether a tensor has changed (virtual replicas, autograd)
    looks at the count; FSDP has the same need.
    """
    return torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(written))


class _RandomState:
    """Where torch's generators stand, on the CPU and on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_cpu = torch.get_rng_state()
        is_cuda = device.type == "cuda"
        self._on_device = torch.cuda.get_rng_state(device) if is_cuda else None

    def put_back(self) -> None:
        torch.set_rng_state(self._on_cpu)
        if self._on_device is not None:
            torch.cuda.set_rng_state(self._on_device, self._device)


class Undisturbed:
    """What evaluations must not leave behind: random states, and buffers of the modules called."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own: dict[torch.Tensor, torch.Tensor] = {}
        self._versions: list[Any] = []
        self._first = self._pair = _RandomState(device)

    def keep(self, module: torch.nn.Module, _: Any) -> None:
        """Remember a module's buffers before its first call."""
        for buffer in module.buffers():
            if buffer not in self._own:
                self._own[buffer] = buffer.clone()
                self._versions.append(same_versions([buffer]))

    def begin_pair(self) -> None:
        """Let both members of a pair draw the same numbers, and others than the last pair."""
        self._pair = _RandomState(self._device)

    def begin_member(self) -> None:
        """Start from the same buffers and random numbers as the other member."""
        self._restore_buffers()
        self._pair.put_back()

    def end(self) -> None:
        """Leave everything as it was found."""
        self._restore_buffers()
        for versions in self._versions:
            versions.__exit__(None, None, None)
        self._first.put_back()

    def _restore_buffers(self) -> None:
        for buffer, value in self._own.items():
            buffer.copy_(value)


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[Undisturbed]:
    """Put back random states and the buffers of all modules that are called inside."""
    found = Undisturbed(device)
    hook = torch.nn.modules.module.register_module_forward_pre_hook(found.keep)
    try:
        yield found
    finally:
        hook.remove()
        found.end()
