"""All passes of a study under one clock: which there are, what is kept, and a table at the end."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks import contestants, runs, study, timing
from benchmarks.contestants import PEERS, grid
from benchmarks.runs import DIVERGED, Job
from benchmarks.stacked.data import Corpus
from benchmarks.stacked.stack import Engine
from benchmarks.stacked.task import FULL, Gpt, Size, for_lanes, name_of
from benchmarks.stacked.training import Clock, Say, train

FILE = "stacked.jsonl"
STARTS = ("autolr:start_value=1e-9", "autolr:start_value=1e-3")
DEFAULT = ",".join(("grid", "autolr", *STARTS))
RESERVE = 10.0
"""Seconds kept for the losses at the end of a pass."""


class Plan(NamedTuple):
    """What is to be run."""

    names: Sequence[str]
    steps: Sequence[int]
    """Lengths of runs. The first has the whole grid, the others what was best in the one before."""
    seeds: int
    path: Path
    device: torch.device
    size: Size = FULL
    half: bool = False
    compiled: bool = True
    max_seconds: float = float("inf")
    commit: str | None = None
    """Where there is no git to ask."""


def run(plan: Plan, corpus: Corpus, say: Say = print) -> None:
    """Every pass that the clock lets, appending the records of each to the file."""
    clock = Clock(plan.max_seconds)

    def timed(line: str) -> None:
        say(f"[{clock.spent:5.0f} s] {line}")

    timed(f"corpus of {corpus.name}; {_machine(plan.device)}; torch {torch.__version__}")
    engine = Engine(plan.device, half=plan.half, compiled=plan.compiled, say=timed)
    paces: dict[tuple[int, int], float] = {}
    for position, total_steps in enumerate(plan.steps):
        task = Gpt(corpus, plan.size, total_steps, plan.device)
        before = None if position == 0 else name_of(plan.steps[position - 1])
        names = _usable(plan.names, task, plan.path, before, timed)
        for seed in range(plan.seeds):
            _pass(plan, task, seed, names, engine, clock, paces, timed)
    own = {name_of(total_steps) for total_steps in plan.steps}
    for line in table([r for r in runs.load(plan.path) if r["task"] in own]):
        say(line)


def _usable(names: Sequence[str], task: Gpt, path: Path, before: str | None, say: Say) -> list[str]:
    """The lanes: cells, ours, then peers, without those whose package is not here.

    Peers come last, for some of them wait for the device at each step, which should be busy then.
    """
    cells = [name for name in names if "@" in name]
    if "grid" in names:
        promoted = study.promoted(before, runs.load(path), task.family) if before else []
        cells += promoted or grid(task)
    others = [name for name in names if name != "grid" and "@" not in name]
    found = []
    for name in dict.fromkeys([*cells, *sorted(others, key=lambda name: name in PEERS)]):
        if name in ("autolr_probe", "greedy"):
            raise ValueError(f"--contestants takes none that runs the model itself; got {name!r}")
        try:
            contestants.build(name, for_lanes(task), nn.Linear(1, 1))
        except ModuleNotFoundError as error:
            say(f"left out {name}: {error}")
        else:
            found.append(name)
    return found


def _pass(
    plan: Plan,
    task: Gpt,
    seed: int,
    names: Sequence[str],
    engine: Engine,
    clock: Clock,
    paces: dict[tuple[int, int], float],
    say: Say,
) -> None:
    """One seed of one length, unless the file has it or the clock forbids it."""
    todo = [job.contestant for job in runs.left_to_do(_jobs(task, names, seed), plan.path)]
    if not todo:
        say(f"{task.name} seed {seed}: there already")
        return
    key = (len(todo), engine.compiled)
    expected = paces.get(key, 0.0) * task.total_steps
    if expected + RESERVE > clock.left:
        say(f"{task.name} seed {seed}: skipped, {expected:.0f} s needed, {clock.left:.0f} s left")
        return
    torch.manual_seed(seed)
    engine.prepare(task.build(), len(todo), task.batch(0, seed)[0])
    say(f"{task.name} seed {seed}: {len(todo)} lanes")
    inner = Clock(clock.left - RESERVE)
    outcome = train(task, seed, todo, engine, inner, say)
    paces[key] = outcome.pace
    path = plan.path if outcome.is_complete else plan.path.with_suffix(".partial.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    origin = _origin(plan, task, engine)
    with path.open("a") as file:
        for name, result in outcome.results.items():
            identity = {"task": task.name, "contestant": name, "seed": seed}
            file.write(runs.dump({**identity, **result, **origin}))
    say(f"{task.name} seed {seed}: {outcome.seconds:.0f} s, written to {path.name}")


def _jobs(task: Gpt, names: Sequence[str], seed: int) -> list[Job]:
    return [Job(task.name, name, seed, task.total_steps) for name in names]


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(timing.provenance()["machine"])


def _origin(plan: Plan, task: Gpt, engine: Engine) -> dict[str, Any]:
    origin = {**timing.provenance(), "machine": _machine(plan.device)}
    return {
        **origin,
        "commit": plan.commit or origin["commit"],
        "precision": "bfloat16" if plan.half else "float32",
        "compiled": engine.compiled,
        "corpus": task.corpus_name,
    }


def table(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Mean losses over seeds, the lowest first, for each length of run."""
    losses: dict[str, dict[str, list[float]]] = {}
    for record in records:
        own = losses.setdefault(record["task"], {})
        own.setdefault(record["contestant"], []).append(float(record["validation"]))
    for task, by_name in losses.items():
        means = sorted((statistics.fmean(own), name) for name, own in by_name.items())
        best = min((mean for mean, name in means if "@" in name), default=means[0][0])
        yield f"{task}: held-out loss, percent off the best of the grid, seeds"
        for mean, name in means:
            if mean >= DIVERGED / 10:
                yield f"  {name:28} diverged"
            else:
                off = 100.0 * (mean / best - 1.0)
                yield f"  {name:28} {mean:.4f} {off:+6.1f} % {len(by_name[name]):3}"
