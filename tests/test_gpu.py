"""On a CUDA device: nothing waits between converges, tensors stay in place, results are the CPU's.

These tests carry the marker `gpu`, which `make test` deselects; `make test-gpu` runs them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import hdet

pytestmark = pytest.mark.gpu


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def build(
    optimizer: type[torch.optim.Optimizer], **settings: object
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1)).cuda()
    return model, optimizer(model.parameters(), **settings)


def one_step(scheduler: hdet.OneCycleLR, model: nn.Module, x: torch.Tensor) -> None:
    losses = []
    for _, part in scheduler.ensemble.fan_out(x):
        loss = (model(part) - part[:, :1]).pow(2).mean()
        losses.append(loss.detach())
        (loss / scheduler.ensemble.num_replicas).backward()
    scheduler.optimizer.step()
    scheduler.optimizer.zero_grad()
    scheduler.step(torch.stack(losses))


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_nothing_waits_between_converges(capturable: bool, weight_decay: float) -> None:
    rate = torch.tensor(1e-3, device="cuda") if capturable else 1e-3
    model, optimizer = build(
        torch.optim.AdamW, lr=rate, weight_decay=weight_decay, capturable=capturable
    )
    scheduler = hdet.OneCycleLR(
        optimizer,
        1e-2,
        total_steps=2000,
        cycle_momentum=False,
        spread_ratio=0.2,
        cycle_steps=500,
        auto_lr=True,
        warmup_steps=500,
        replicas=hdet.VirtualReplicas(4),
        model=model,
    )
    x = torch.randn(32, 16, device="cuda")
    for _ in range(500):  # the first cycle may allocate and compile; its converge may wait
        one_step(scheduler, model, x)
    torch.cuda.synchronize()
    memory = torch.cuda.memory_allocated()
    with waiting_is_an_error():
        for _ in range(499):
            one_step(scheduler, model, x)
    assert abs(torch.cuda.memory_allocated() - memory) < 2**20
    one_step(scheduler, model, x)
    if capturable:
        assert optimizer.param_groups[0]["lr"] is rate


def test_the_check_can_fail() -> None:
    """Negative control: reading a loss is what the mode above is there to catch."""
    with waiting_is_an_error(), pytest.raises(RuntimeError):
        torch.ones(1, device="cuda").item()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_results_are_the_cpus(kind: type[torch.optim.Optimizer]) -> None:
    def train(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).double().to(device)
        optimizer = kind(model.parameters(), lr=1e-3)
        scheduler = hdet.OneCycleLR(
            optimizer,
            1e-2,
            total_steps=40,
            cycle_momentum=False,
            spread_ratio=0.3,
            cycle_steps=10,
            replicas=hdet.VirtualReplicas(4),
        )
        for step in range(35):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(32, 16, generator=generator, dtype=torch.float64).to(device)
            one_step(scheduler, model, x)
        scheduler.converge()
        return torch.cat([p.detach().reshape(-1).cpu() for p in model.parameters()])

    expected = train("cpu")
    assert float((train("cuda") - expected).norm() / expected.norm()) < 1e-10


def test_fused_and_foreach_give_the_same() -> None:
    ends = []
    for settings in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        # No norm: a bias ahead of one has no gradient but rounding, which Adam would amplify.
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **settings)
        scheduler = hdet.OneCycleLR(
            optimizer,
            1e-2,
            total_steps=20,
            spread_ratio=0.2,
            cycle_steps=5,
            replicas=hdet.VirtualReplicas(2),
        )
        x = torch.randn(32, 16, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
        for _ in range(20):
            one_step(scheduler, model, x)
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    for other in ends[1:]:
        assert torch.allclose(ends[0], other, rtol=1e-3, atol=1e-4)


def test_the_warm_start_draws_on_the_device() -> None:
    model, _ = build(torch.optim.SGD, lr=0.1)
    before = copy.deepcopy(model)
    state = torch.cuda.get_rng_state()
    hdet.warm_start_(model, noise_scale=0.1)
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert not torch.equal(model[0].weight, before[0].weight)
