"""`docs/results.md`: tables, pictures, and prose that depends on no figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import horizon, stacked, tables
from benchmarks.report.results import Record, Results
from benchmarks.tasks import TASKS

HEAD = """\
# Results

<!-- Made by `python -m benchmarks render` from benchmarks/results/autolr.jsonl. Do not edit. -->

`hdet.AutoLR` gets no learning rate. It is compared with a grid of 21 tuned cells (three schedules,
seven rates each) and with methods that need no rate either, each at its own defaults. Within a task
and a seed everybody starts from the same weights and sees the same batches. Lower is better, and
all distances are in percent of the loss of the grid's best cell, paired by seed: mean over seeds
&plusmn; their standard deviation. Every cell has one seed; the best of each schedule and its
neighbours have all. The best cell is the one with the lowest mean among those with the most seeds.
It has the advantage of having been chosen by the very losses that it is judged by. AutoLR has one
too: its defaults were chosen by validation losses of seeds 0 and 1 of these five tasks and of six
smaller ones (`docs/method.md`), so these are not figures of tasks that it has never seen. Those
follow below.

"Not run" means that there is no record; nothing is filled in.
"""
SCHEDULE_TEXT = """\
The rate as it was found, one line a seed, beside that of the grid's best cell. "Short horizon" is
the same controller with the slope over one cycle alone, see the ablations below.
"""
RATE_TEXT = """\
The loss against the peak rate for each schedule, and against the start value for AutoLR, whose
line is what it reaches with nothing given. What lies far above leaves the picture at its top.
"""
ABLATION_TEXT = """\
One thing is changed at a time, and all else left as it is. Numbers are percent above AutoLR with
its defaults, paired by seed: a negative one means that the change helps on that task. In the row
`greedy` the controller is fed with the slope over one cycle only, which is what a comparison of
short runs sees. A lower rate damps noise at once and pays for it later, and such a slope sees only
the first of the two.
"""
REPRODUCE = """\
```
make setup
.venv/bin/python -m pip install torch==2.13.0 -e '.[dev,bench]'
OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks autolr
.venv/bin/python -m benchmarks render
```

A run that is in the file already is not done again, so the command can be interrupted. `--task`,
`--contestants` and `--seeds` make it shorter; `--redo` runs again what is there, for example after
a change of `hdet`. On CPUs of another make the last digits differ.
"""
UNSEEN_TEXT = """\
Six tasks that were written and checked with the grid alone (`benchmarks/tasks/unseen/`). AutoLR's
defaults were fixed before it first ran on them, and what came out has changed none of them.
"""
PEERS_TEXT = """\
Peers: Schedule-Free and DoG hold their rate, Prodigy, D-Adapt and Mechanic are annealed by a
cosine, as their authors advise. GreedyLR starts from PyTorch's default rate and is given the loss
of every step.
"""


def page(
    results: Results,
    unseen: Results,
    costs: Mapping[str, Any],
    figures: Iterable[Path],
    branches: Sequence[Record] = (),
    lanes: Sequence[Record] = (),
) -> str:
    """The whole page."""
    drawn = {path.name for path in figures}
    extra = tables.extra_time(costs)
    lines = [HEAD]
    if not results.tasks:
        return "\n".join([*lines, "There are no results yet.", ""])
    lines += [f"The most seeds that anybody has here: {results.num_seeds}.", ""]
    lines += ["## Summary", "", *tables.summary(results), ""]
    lines += [*tables.against_peers(results), "", PEERS_TEXT]
    for task in results.tasks:
        lines += _task(results, task, extra, drawn)
    lines += ["## Tasks that it had never seen", "", UNSEEN_TEXT]
    lines += [*tables.summary(unseen), ""] if unseen.tasks else ["Not run.", ""]
    lines += [*tables.against_peers(unseen), ""] if unseen.tasks else []
    lines += [line for task in unseen.tasks for line in _grid(unseen, task)]
    lines += stacked.section(lanes, drawn)
    lines += horizon.section(branches)
    lines += ["## Ablations", "", ABLATION_TEXT, *tables.ablations(results), ""]
    lines += ["## How it was measured", "", *(f"- {line}" for line in results.origins()), ""]
    lines.append(REPRODUCE)
    return "\n".join(lines)


def _grid(results: Results, task: str) -> list[str]:
    kind = TASKS[task]
    about = (kind.__doc__ or "").splitlines()[0]
    found = ", ".join(f"{rate:.2g}" for rate in results.held_rates(task, "autolr"))
    title = f"{task}: {about} {kind.total_steps} steps. AutoLR held {found or 'nothing yet'}."
    return [title, "", *tables.grid(results, task), ""]


def _task(results: Results, task: str, extra: Mapping[str, float], drawn: set[str]) -> list[str]:
    kind = TASKS[task]
    about = (kind.__doc__ or "").splitlines()[0]
    optimizer = {"adamw": "AdamW", "sgd": "SGD with momentum"}[kind.family]
    lines = [f"## {task}", "", f"{about} {kind.total_steps} steps, {optimizer}.", ""]
    lines += [*tables.of_task(results, task, extra), ""]
    lines += [
        "All cells of the grid, in percent off the best:",
        "",
        *tables.grid(results, task),
        "",
    ]
    texts = (
        ("schedules", "Discovered schedules", SCHEDULE_TEXT),
        ("rates", "Loss by rate", RATE_TEXT),
    )
    for name, title, text in texts:
        if f"{name}_{task}.png" in drawn:
            lines += [f"![{title}, {task}](figures/{name}_{task}.png)", ""]
            lines += [text] if task == results.tasks[0] else []
    return lines
