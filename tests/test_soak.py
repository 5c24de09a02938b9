"""A run of days in short: memory, threads and open files stay where they are.

2 000 cycles by default; ``pytest -m slow tests/test_soak.py`` takes the 20 000 that are promised.
"""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Callable

import pytest
import torch
from torch import nn

import hdet

WARM_UP = 400


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def virtual() -> Callable[[], int]:
    """`OneCycleLR` with the paper's controller over three virtual replicas, in cycles of one."""
    param = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([param], lr=0.1)
    scheduler = hdet.OneCycleLR(
        optimizer,
        1e-3,
        10**6,
        spread_ratio=0.2,
        cycle_steps=1,
        auto_lr=True,
        replicas=hdet.VirtualReplicas(3),
    )
    ensemble, data = scheduler.ensemble, torch.ones(3, 4)

    def step() -> int:
        losses = []
        for _, part in ensemble.fan_out(data):
            loss = (part * param).square().mean()
            (loss / 3).backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(torch.stack(losses))
        return ensemble._cycle

    return step


def found_rate() -> Callable[[], int]:
    """`AutoLR` in its shortest cycles, which neither grow nor end in an anneal."""
    param = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([param], lr=1.0, momentum=0.9)
    controller = hdet.LongHorizonController(
        climb_steps=3, climb_end=30, cycle_steps=3, cycle_growth=0.0
    )
    scheduler = hdet.AutoLR(optimizer, controller=controller, bounds=(1e-6, 1e-2))
    generator = torch.Generator().manual_seed(0)

    def step() -> int:
        param.grad = param.detach() + torch.randn(4, generator=generator)
        optimizer.step()
        scheduler.step()
        return scheduler.ensemble._cycle

    return step


def leaking() -> Callable[[], int]:
    """A kilobyte a cycle."""
    step, kept = found_rate(), []

    def also() -> int:
        kept.append(bytearray(1000))
        return step()

    return also


def until(step: Callable[[], int], cycle: int) -> None:
    while step() < cycle:
        pass
    gc.collect()


def growth(build: Callable[[], Callable[[], int]], num_cycles: int) -> tuple[float, int]:
    """Of the process's memory, as a part of what it was, and of its open files and threads."""
    step = build()
    until(step, WARM_UP)
    resident, handles = resident_bytes(), open_handles()
    until(step, num_cycles)
    return resident_bytes() / resident - 1.0, open_handles() - handles


def open_handles() -> int:
    return len(os.listdir("/proc/self/fd")) + threading.active_count()


def traced(build: Callable[[], Callable[[], int]]) -> float:
    """Python's own objects, which tracemalloc makes slow, in bytes a cycle."""
    tracemalloc.start()
    try:
        step = build()
        until(step, 2 * WARM_UP)  # free lists fill up
        before = tracemalloc.get_traced_memory()[0]
        until(step, 5 * WARM_UP)
        return (tracemalloc.get_traced_memory()[0] - before) / (3 * WARM_UP)
    finally:
        tracemalloc.stop()


KINDS = pytest.mark.parametrize("build", [virtual, found_rate], ids=["virtual replicas", "AutoLR"])
NUM_CYCLES = [2000, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="counts with /proc")


@needs_proc
@KINDS
@pytest.mark.parametrize("num_cycles", NUM_CYCLES)
def test_nothing_grows(build: Callable[[], Callable[[], int]], num_cycles: int) -> None:
    grown, new_handles = growth(build, num_cycles)
    assert grown < 0.01
    assert new_handles <= 0


@KINDS
def test_no_object_is_left_behind(build: Callable[[], Callable[[], int]]) -> None:
    assert traced(build) < 10.0, "bytes a cycle"


def test_an_object_left_behind_is_seen() -> None:
    """Negative control."""
    assert traced(leaking) > 900.0
