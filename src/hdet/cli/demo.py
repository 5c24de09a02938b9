"""``hdet demo``: a small language model with HDET, next to plain OneCycleLR on the same batches."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import hdet
from hdet.cli.byte_model import ByteModel, corpus, draw
from hdet.errors import UsageError

LENGTH = 64
CORPUS_BYTES = 6_000_000
NUM_VALIDATION = 256
_HELP = "see hdet demo --help for the defaults"
LINE_STEPS = 50
"""Steps between two lines of progress where the output is no terminal and has no bar."""


class Run(NamedTuple):
    """One configuration: ``step`` trains on a batch and returns the loss, ``finish`` ends it."""

    name: str
    model: ByteModel
    step: Callable[[torch.Tensor], float]
    finish: Callable[[], None]


def add_parser(commands: Any) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "demo",
        help="train a small language model with and without HDET",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=1000, help="optimiser steps")
    parser.add_argument("--replicas", type=int, default=8, help="virtual replicas")
    parser.add_argument("--sequences", type=int, default=2, help="sequences a replica and step")
    parser.add_argument("--max-lr", type=float, default=1e-2, help="OneCycleLR's peak rate")
    parser.add_argument("--spread", type=float, default=1 / 9, help="relative half width (alpha)")
    parser.add_argument("--cycle-steps", type=int, default=20, help="steps between averagings (T)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches, permutations")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Train both, one step of each in turn, and print a table."""
    _check(options)
    threads = torch.get_num_threads()
    # Layers this small gain nothing from more threads, and where another job holds one of the
    # cores OpenMP spins at every operation: the same run then takes a hundred times as long.
    torch.set_num_threads(1)
    try:
        _compare(options)
    finally:
        torch.set_num_threads(threads)


def _check(options: argparse.Namespace) -> None:
    """What nothing further down would refuse under the option's own name."""
    for name in ("steps", "replicas", "sequences"):
        hdet.checks.integer(f"--{name}", getattr(options, name), minimum=1, remedy=_HELP)
    hdet.checks.real("--max-lr", options.max_lr, low=0.0, low_open=True, remedy=_HELP)


def _compare(options: argparse.Namespace) -> None:
    console, progress = _display()
    train, validation = corpus(CORPUS_BYTES)
    runs = [_plain(options), _explored(options)]
    parameters = sum(p.numel() for p in runs[0].model.parameters())
    console.print(
        f"[bold]{parameters:,}[/] parameters, {len(train) / 1e6:.1f} MB of Python's own sources, "
        f"{options.replicas} replicas x {options.sequences} sequences x {LENGTH} bytes, "
        f"{options.steps} steps at a peak rate of {options.max_lr:g}"
    )
    losses = [0.0 for _ in runs]
    start = time.perf_counter()
    with progress:
        bar = progress.add_task("training", total=options.steps, losses="")
        for step in range(options.steps):
            seed = options.seed * 1_000_003 + step
            batch = draw(train, options.replicas * options.sequences, LENGTH, seed)
            for index, own in enumerate(runs):
                loss = own.step(batch)
                losses[index] = loss if step == 0 else 0.95 * losses[index] + 0.05 * loss
            shown = "  ".join(
                f"{own.name} {loss:.3f}" for own, loss in zip(runs, losses, strict=True)
            )
            progress.update(bar, advance=1, losses=shown)
            if not console.is_terminal and (step + 1) % LINE_STEPS == 0:
                console.print(f"step {step + 1}/{options.steps}  {shown}")
    for own in runs:
        own.finish()
    held_out = draw(validation, NUM_VALIDATION, LENGTH, seed=options.seed)
    console.print(_table(runs, losses, [_evaluate(own.model, held_out) for own in runs]))
    console.print(f"{time.perf_counter() - start:.0f} s; same weights, same batches, one seed")


def _optimizer(model: ByteModel) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def _plain(options: argparse.Namespace) -> Run:
    torch.manual_seed(options.seed)
    model = ByteModel(length=LENGTH)
    optimizer = _optimizer(model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.max_lr, total_steps=options.steps
    )

    def step(batch: torch.Tensor) -> float:
        loss = model(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        return float(loss.detach())

    return Run("OneCycleLR", model, step, lambda: None)


def _explored(options: argparse.Namespace) -> Run:
    torch.manual_seed(options.seed)
    model = ByteModel(length=LENGTH)
    optimizer = _optimizer(model)
    scheduler = hdet.OneCycleLR(
        optimizer,
        options.max_lr,
        total_steps=options.steps,
        spread_ratio=options.spread,
        cycle_steps=options.cycle_steps,
        replicas=hdet.VirtualReplicas(options.replicas),
        seed=options.seed,
    )
    ensemble = scheduler.ensemble

    def step(batch: torch.Tensor) -> float:
        losses = []
        for _, part in ensemble.fan_out(batch):
            loss = model(part)
            losses.append(loss.detach())
            (loss / ensemble.num_replicas).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(torch.stack(losses) if len(losses) > 1 else losses[0])
        return float(torch.stack(losses).mean())

    return Run("hdet.OneCycleLR", model, step, scheduler.converge)


@torch.no_grad()
def _evaluate(model: ByteModel, held_out: torch.Tensor) -> float:
    model.eval()
    return float(torch.stack([model(part) for part in torch.split(held_out, 32)]).mean())


def _display() -> tuple[Any, Any]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft
    except ImportError:
        raise UsageError("the demo needs rich, which is missing; pip install 'hdet[cli]'") from None
    console = Console(highlight=False)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeLeft(),
        TextColumn("{task.fields[losses]}"),
        console=console,
        disable=not console.is_terminal,
    )
    return console, progress


def _table(runs: list[Run], training: list[float], validation: list[float]) -> Any:
    from rich.table import Table

    table = Table(title="loss, nats a byte (lower is better)")
    table.add_column("run")
    table.add_column("training, recent mean", justify="right")
    table.add_column("validation", justify="right")
    for own, trained, held_out in zip(runs, training, validation, strict=True):
        table.add_row(own.name, f"{trained:.4f}", f"{held_out:.4f}")
    return table
