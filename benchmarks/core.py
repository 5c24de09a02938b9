"""What the core costs: a step between converges, a converge, and the error of two-copy replicas."""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import hdet
from benchmarks.timing import interleaved, ratio

SEED = 0


def step_overhead(num_groups: int, *, windows: int = 41) -> dict[str, Any]:
    """``hdet.OneCycleLR.step`` between converges against PyTorch's."""

    def groups() -> torch.optim.Optimizer:
        members = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(num_groups)]
        return torch.optim.SGD(members, lr=0.1, momentum=0.9)

    total = 10_000_000
    plain = torch.optim.lr_scheduler.OneCycleLR(groups(), 0.1, total_steps=total)
    off = hdet.OneCycleLR(groups(), 0.1, total_steps=total)
    spread = hdet.OneCycleLR(
        groups(),
        0.1,
        total_steps=total,
        spread_ratio=1 / 9,
        cycle_steps=total,
        replicas=hdet.VirtualReplicas(8),
    )
    losses = torch.ones(8)
    for scheduler in (plain, off, spread):
        scheduler.optimizer.step()
    seconds = interleaved(
        {
            "torch": lambda: plain.step(),
            "off": lambda: off.step(),
            "spread": lambda: spread.step(losses),
        },
        windows=windows,
        calls=max(2000 // num_groups, 20),
    )
    return {
        "groups": num_groups,
        "torch_us": 1e6 * statistics.median(seconds["torch"]),
        "off_ratio": ratio(seconds, "off", "torch"),
        "spread_ratio": ratio(seconds, "spread", "torch"),
    }


def _converge_rank(rank: int, size: int, store: str, results: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    params = [nn.Parameter(torch.randn(100, 250)) for _ in range(1000)]  # 100 MB
    optimizer = torch.optim.SGD(params, lr=0.1)
    ensemble = hdet.Ensemble(
        optimizer, hyperparameters=[hdet.LearningRate(0, spread_ratio=1 / 9)], cycle_steps=10**9
    )
    flat = torch.randn(1000 * 100 * 250)

    def ours() -> None:
        ensemble.advance(1.0)
        ensemble.converge()

    def one_flat() -> None:
        dist.all_reduce(flat)
        flat.div_(size)

    def one_a_tensor() -> None:
        for param in params:
            dist.all_reduce(param.data)
            param.data.div_(size)

    candidates = {"ours": ours, "flat": one_flat, "tensors": one_a_tensor}
    interleaved(candidates, windows=1, calls=1)
    seconds = interleaved(candidates, windows=11, calls=1)
    if rank == 0:
        results.put(seconds)
    dist.barrier()
    dist.destroy_process_group()


def converge(size: int = 2) -> dict[str, Any]:
    """One converge of 1000 tensors, 100 MB, against one all-reduce of as many bytes."""
    context = mp.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (size, os.path.join(folder, "store"), results)
        workers = [
            context.Process(target=_converge_rank, args=(rank, *arguments)) for rank in range(size)
        ]
        for worker in workers:
            worker.start()
        seconds = results.get(timeout=300)
        for worker in workers:
            worker.join(timeout=60)
    return {
        "processes": size,
        "megabytes": 100,
        "tensors": 1000,
        "flat_ms": 1e3 * statistics.median(seconds["flat"]),
        "ours_to_flat": ratio(seconds, "ours", "flat"),
        "tensors_to_flat": ratio(seconds, "tensors", "flat"),
    }


def bend(cycle_steps: int, weight_decay: float) -> dict[str, Any]:
    """How far ``exact=False`` is from N processes' trajectory with AdamW, after three cycles."""

    def train(*, exact: bool) -> torch.Tensor:
        torch.manual_seed(SEED)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=weight_decay)
        ensemble = hdet.Ensemble(
            optimizer,
            hyperparameters=[hdet.LearningRate(0, spread_ratio=1 / 9)],
            cycle_steps=cycle_steps,
            replicas=hdet.VirtualReplicas(8, exact=exact),
        )
        generator = torch.Generator().manual_seed(SEED)
        for _ in range(3 * cycle_steps):
            x = torch.randn(32, 16, generator=generator, dtype=torch.float64)
            losses = []
            for _, part in ensemble.fan_out(x):
                loss = (model(part) - part[:, :4].sin()).pow(2).mean()
                losses.append(loss.detach())
                (loss / 8).backward()
            optimizer.step()
            optimizer.zero_grad()
            ensemble.step(losses)
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    exact, line = train(exact=True), train(exact=False)
    return {
        "cycle_steps": cycle_steps,
        "weight_decay": weight_decay,
        "rate_decay_steps": 3e-3 * weight_decay * cycle_steps,
        "relative_error": float((line - exact).norm() / exact.norm()),
    }


def measure() -> dict[str, Any]:
    """All of it, in about two minutes on two cores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hdet.HDETWarning)
        return {
            "seed": SEED,
            "step": [step_overhead(4), step_overhead(100)],
            "converge": [converge()],
            "bend": [bend(t, wd) for t in (10, 100) for wd in (0.01, 0.1, 1.0)],
        }


def render(results: dict[str, Any]) -> str:
    """The page that shows them."""
    if not results:
        return "# What it costs\n"
    machine = results["provenance"]
    lines = [
        "# What it costs",
        "",
        "<!-- Made by `python -m benchmarks render` from benchmarks/results/core.json. -->",
        "",
        f"Commit {machine['commit']}, torch {machine['torch']}, Python {machine['python']}, "
        f"{machine['machine']}, seed {results['seed']}. Ratios are medians of interleaved windows.",
        "",
        "## A step between two converges",
        "",
        "| groups | PyTorch's OneCycleLR | hdet, switched off | hdet, 8 replicas and a loss |",
        "|---|---|---|---|",
        *(
            f"| {row['groups']} | {row['torch_us']:.0f} us (1x) | {row['off_ratio']:.2f}x | "
            f"{row['spread_ratio']:.2f}x |"
            for row in results["step"]
        ),
        "",
        "## A converge",
        "",
        "gloo on loopback; the baseline is one all-reduce of one flat buffer of as many bytes.",
        "",
        "| processes | tensors | MB | baseline | hdet | one call a tensor |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['processes']} | {row['tensors']} | {row['megabytes']} | "
            f"{row['flat_ms']:.0f} ms (1x) | {row['ours_to_flat']:.2f}x | "
            f"{row['tensors_to_flat']:.2f}x |"
            for row in results["converge"]
        ),
        "",
        "## What `VirtualReplicas(exact=False)` leaves out",
        "",
        "Relative distance of the converged parameters from those of exact replicas, AdamW at a",
        "rate of 3e-3, 8 replicas, spread 1/9, three cycles, float64. With `exact=True` it is 0 by",
        "construction and 1e-12 against real processes (`tests/test_keystone.py`).",
        "",
        "| T | weight decay | rate x decay x T | relative error |",
        "|---|---|---|---|",
        *(
            f"| {row['cycle_steps']} | {row['weight_decay']} | {row['rate_decay_steps']:.0e} | "
            f"{_short(row['relative_error'])} |"
            for row in results["bend"]
        ),
        "",
    ]
    return "\n".join(lines)


def _short(number: float) -> str:
    return "0" if number == 0 else f"{number:.0e}" if math.isfinite(number) else "diverged"
