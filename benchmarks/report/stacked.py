"""The larger model on one GPU: tables and pictures from the records of `benchmarks.stacked`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.contestants import PEERS, SCHEDULES
from benchmarks.report import figures, tables
from benchmarks.report.results import Record, Results
from benchmarks.stacked.study import STARTS
from benchmarks.stacked.task import Gpt

TEXT = """\
Next-byte prediction again, with 3.3 million parameters (4 layers, width 256, no dropout), 32
windows of 256 bytes a step, and all sources of Python's library, of which the last tenth is held
out; AdamW, clipped to norm 1. All configurations of a seed are trained at once, stacked along a
leading dimension, and each is stepped by its own optimiser and scheduler. That a lane of the stack
is the run that it would be alone is tested, to 1e-5 in float32. These are runs of AutoLR as it was
at the commit below, chosen without this task, though with its small relative byte_lm. In 6000 steps
its rate went to ten times the best. That is why the balance leans on the turn of the climb since
then (`trust`), and charges noise a third more; it has not been run again here. Where there are runs
of several lengths, the longer ones have only those cells of the grid that were best in the shorter
ones, and their neighbours. On a GPU sums are not taken in a fixed order, so a run repeats itself
nearly, not to the last bit.
"""
COMMAND = (
    "`python -m benchmarks stacked` on a machine with a GPU, then `python -m benchmarks render`."
)


def gathered(records: Iterable[Record]) -> Results:
    """The records, shorter runs first."""
    records = sorted(records, key=lambda record: int(record["total_steps"]))
    return Results(records, dict.fromkeys((record["task"] for record in records), Gpt))


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """The same two pictures as for the other tasks."""
    return figures.draw_all(gathered(records), folder) if records else []


def section(records: Sequence[Record], drawn: Iterable[str]) -> list[str]:
    """Title, text, and a table and pictures for each length of run."""
    lines = ["## A larger model, on one GPU", "", TEXT]
    if not records:
        return [*lines, f"Not run. {COMMAND}", ""]
    results, drawn = gathered(records), set(drawn)
    for task in results.tasks:
        steps = next(record["total_steps"] for record in records if record["task"] == task)
        lines += [f"### {steps} steps", "", *_table(results, task), ""]
        lines += ["All cells of the grid, in percent off the best:", ""]
        lines += [*tables.grid(results, task), ""]
        for kind, title in (("schedules", "Discovered schedules"), ("rates", "Loss by rate")):
            if f"{kind}_{task}.png" in drawn:
                lines += [f"![{title}, {task}](figures/{kind}_{task}.png)", ""]
    lines += [f"- {line}" for line in results.origins()]
    kinds = dict.fromkeys(
        f"{r['precision']}{', compiled' if r['compiled'] else ''}; corpus of {r['corpus']}"
        for r in records
    )
    return [*lines, *(f"- {kind}" for kind in kinds), "", COMMAND, ""]


def _table(results: Results, task: str) -> list[str]:
    """The best of each schedule, AutoLR by its start value, and the peers that took part."""
    best = results.best_cell(task)
    columns = [results.best_cell(task, [schedule]) for schedule in SCHEDULES]
    peers = [name for name in results.contestants(task) if name in PEERS]
    rows = []
    for name in (*columns, "autolr", *STARTS, *peers):
        losses = results.losses(task, name) if name else {}
        score = results.score(task, name, best) if name else None
        distance = "0" if name is not None and name == best else tables.percent(score)
        label = _label(results, task, name)
        rows.append([label, str(len(losses)), tables.loss(losses), distance])
    return tables.table(["", "seeds", "held-out loss", "% off the best"], rows)


def _label(results: Results, task: str, name: str | None) -> str:
    if name is None:
        return "a schedule of the grid"
    if "@" in name:
        return tables.where(results, task, name)
    if name in STARTS:
        return f"AutoLR, `{name.removeprefix('autolr:')}`"
    return tables.NAMES[name]
