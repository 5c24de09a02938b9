"""What every signal does: collect on the device, say its part once a cycle."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Trend(NamedTuple):
    """Which way the loss leans when a hyperparameter is scaled, in units of the loss.

    Only its sign and its size relative to `scale` and `stderr` are used, so nothing here depends on
    the unit in which a loss is measured.
    """

    slope: float
    """d loss / d log value over the memory of the signal; negative where a higher value is better.
    NaN where the cycle measured nothing."""
    stderr: float
    """Standard error of `slope`."""
    scale: float
    """Sum of the magnitudes of the parts of `slope`, which is what `slope` is compared with."""
    alignment: float
    """Mean cosine between the gradient and the recent movement; negative while it leads down."""
    moved: float
    """Length of the recent movement relative to the parameters'; infinite where those are zero."""
    samples: tuple[float, ...] = ()
    """The paired differences that `slope` is the mean of, where the signal has such."""


class AbstractSignal(abc.ABC):
    """Collects evidence during a cycle and reports it at its end.

    Nothing here may wait for the device between two converges.
    """

    @property
    @abc.abstractmethod
    def needs_loss(self) -> bool:
        """Whether `observe` must be called at every step."""

    @property
    def has_trends(self) -> bool:
        """Whether `trends` has something to say, rather than the comparison of losses alone."""
        return False

    def attach(
        self,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[int],
        rate: Callable[[int], float],
        num_processes: int = 1,
    ) -> None:
        """Get to know the training, once, before its first step.

        Args:
            optimizer: whose steps may be followed.
            groups: the parameter groups whose rates are controlled.
            rate: position in ``groups`` -> that group's rate now, read without waiting.
            num_processes: how many measure the same cycle and can share the work.
        """
        del optimizer, groups, rate, num_processes

    @abc.abstractmethod
    def observe(self, losses_L: torch.Tensor) -> None:
        """Take in one step's losses ``[L]``, one for each replica in this process."""

    @abc.abstractmethod
    def measure(self, num_local: int, device: torch.device) -> torch.Tensor:
        """Each local replica's mean training loss ``[L]`` on ``device``, NaN if it has none."""

    def statistics(self) -> torch.Tensor:
        """Further numbers ``[K]`` of this process for `trends`; none by default."""
        return torch.empty(0)

    def trends(
        self, rows_RK: Sequence[Sequence[float]], *, independent: bool
    ) -> list[Trend] | None:
        """What the rows of all replicas that count say, for each group that was attached.

        Args:
            rows_RK: the gathered `statistics`.
            independent: whether replicas took their samples from gradients of their own.

        Returns:
            None from a signal that only compares the replicas' losses.
        """
        del rows_RK, independent
        return None

    @abc.abstractmethod
    def reset(self, num_steps: int) -> None:
        """Forget the cycle that ended; the next has ``num_steps`` steps, 0 if nobody asks."""

    def forget(self) -> None:
        """Begin anew where the parameters stand: they were put back to an earlier point.

        Nothing to do, unless a signal remembers more than a cycle.
        """
        return

    def state_dict(self) -> dict[str, Any]:
        """What must outlive a restart: nothing, unless a signal remembers more than a cycle."""
        return {}

    def check_state(self, state: Any) -> None:  # noqa: B027  # most signals keep none
        """Raise, without changing anything, if `load_state_dict` could not restore ``state``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore."""
        del state

    def local_state_dict(self) -> dict[str, Any]:
        """What this process alone measured in the cycle so far: small, and gone at its end."""
        return {}

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it, after `load_state_dict`."""
        del state

    def memory(self) -> list[torch.Tensor]:
        """What it remembers of its replica's parameters, which converge averages too."""
        return []
