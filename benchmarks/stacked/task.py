"""The task: `byte_lm` with a larger model and a larger corpus."""

from __future__ import annotations

import copy
import functools
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.stacked.data import Corpus
from benchmarks.tasks import Batch
from benchmarks.tasks.byte_lm import ByteLM
from hdet.cli.byte_model import ByteModel


class Size(NamedTuple):
    """Of the model and of its batches."""

    width: int = 256
    num_layers: int = 4
    length: int = 256
    batch: int = 32
    num_held_out: int = 1024
    """Windows that the loss at the end is taken on."""


FULL = Size()
QUICK = Size(width=16, num_layers=2, length=16, batch=4, num_held_out=16)


class Gpt(ByteLM):
    """Next-byte prediction with a pre-norm transformer of 3.3 million parameters, no dropout.

    Args:
        corpus: what is predicted.
        size: of the model and its batches.
        total_steps: the length of a run, which is part of the task's name.
        device: where training and held-out bytes lie.
    """

    def __init__(
        self,
        corpus: Corpus,
        size: Size = FULL,
        total_steps: int = 2000,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = size
        self.total_steps = total_steps
        self.name = name_of(total_steps)
        self.settings = {**ByteLM.settings, "fused": torch.device(device).type == "cuda"}
        self.corpus_name = corpus.name
        self._training, self._unseen = corpus.training.to(device), corpus.held_out.to(device)
        self._window = torch.arange(size.length + 1, device=device)

    def build(self) -> nn.Module:
        """A fresh model, on the host."""
        return ByteModel(
            width=self.size.width, num_layers=self.size.num_layers, length=self.size.length
        )

    def starts(self, step: int, seed: int) -> torch.Tensor:
        """Where the windows of a step's batch begin, ``[B, 1]``, on the host."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        last = len(self._training) - self.size.length
        return torch.randint(last, (self.size.batch, 1), generator=generator)

    def windows(self, starts: torch.Tensor) -> torch.Tensor:
        """The training windows ``[B, T + 1]`` that begin there, on the device."""
        return self._training[starts + self._window].long()

    def batch(self, step: int, seed: int) -> Batch:
        """Random windows of the training files."""
        return (self.windows(self.starts(step, seed).to(self._training.device)),)

    @functools.cached_property
    def _held_out(self) -> list[Batch]:
        length, count = self.size.length, self.size.num_held_out
        stride = (len(self._unseen) - length - 1) // count
        if stride < 1:
            raise ValueError(
                f"--corpus must hold out at least {count + length + 1} bytes, got "
                f"{len(self._unseen)}; give a larger file"
            )
        starts = stride * torch.arange(count, device=self._unseen.device)
        windows = self._unseen[starts[:, None] + self._window].long()
        return [(part,) for part in torch.split(windows, self.size.batch)]


def name_of(total_steps: int) -> str:
    """The task's name in the records: runs of different lengths are different tasks."""
    return f"gpt_{total_steps}"


def for_lanes(task: Gpt) -> Gpt:
    """The task as a lane's contestant sees it: the stack has clipped already."""
    lane_task = copy.copy(task)
    lane_task.clip = None
    return lane_task
