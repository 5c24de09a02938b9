"""A network that has learnt something else about images goes on to their classes."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from benchmarks.tasks.base import Batch
from benchmarks.tasks.images import Images, convolutions

WIDTH = 64


def _body() -> nn.Sequential:
    layers = convolutions(nn.BatchNorm2d)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, WIDTH), nn.ReLU())


class Turns(Images):
    """By how many right angles an image is turned: what the body learns first."""

    batch_size = 64

    def build(self) -> nn.Module:
        """The body and a head of its own."""
        return nn.Sequential(_body(), nn.Linear(WIDTH, 4))

    def batch(self, step: int, seed: int) -> Batch:
        """Each quarter of the images is turned alike."""
        parts = super().batch(step, seed)[0].chunk(4)
        turned = torch.cat([part.rot90(turns, (2, 3)) for turns, part in enumerate(parts)])
        return turned, torch.arange(4).repeat_interleave(self.batch_size // 4)


@functools.cache
def _pretrained(num_steps: int = 300, seed: int = 5) -> dict[str, torch.Tensor]:
    """The body that has learnt to tell turns, once in a process."""
    task = Turns()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task.build()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for step in range(num_steps):
            torch.autograd.backward(task.loss(model, task.batch(step, seed)))
            optimizer.step()
            optimizer.zero_grad()
    assert isinstance(model, nn.Sequential)
    return model[0].state_dict()


class FineTuning(Images):
    """Twenty thousand images for a network that knows how images are turned, SGD with momentum."""

    name = "fine_tuning"
    total_steps = 900
    family = "sgd"
    settings = {"momentum": 0.9, "nesterov": True}  # noqa: RUF012
    batch_size = 64
    num_images = 20_000

    def build(self) -> nn.Module:
        """The pretrained body and a fresh head."""
        body, head = _body(), nn.Linear(WIDTH, 10)
        body.load_state_dict(_pretrained())
        return nn.Sequential(body, head)

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Body and head, with weight decay on the body."""
        assert isinstance(model, nn.Sequential)
        return [
            {"name": "body", "params": list(model[0].parameters()), "weight_decay": 1e-3},
            {"name": "head", "params": list(model[1].parameters()), "weight_decay": 0.0},
        ]
