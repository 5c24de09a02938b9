"""Short-horizon bias as a picture and a few lines: which multiple of the best rate looks best."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.report.figures import BLUE, DPI, ORANGE, SETTINGS, save
from benchmarks.report.results import Record

PICTURE = "horizon.png"
TEXT = """\
A run stands at a common state, after a tenth, three tenths and six tenths of its steps at the
grid's best held rate. From there branches go on at multiples of that rate, on the same batches,
for three per cent of the run. Judged by the loss at their last point, lower rates look better:
they damp the noise, which the final anneal would remove anyway. Judged by the loss at the average
of a branch's second half, the noise is gone, and on most tasks so is most of the bias; on flights
it is not. Percent above the branch that goes on at the same rate, mean over the three states and
the seeds.
"""


def means(records: Sequence[Record], task: str) -> list[tuple[float, float, float]]:
    """(multiple, percent at the last point, percent at the average), by multiple."""
    own: dict[float, list[tuple[float, float]]] = {}
    for record in records:
        if record["task"] != task:
            continue
        for part in {branch[0] for branch in record["branches"]}:
            group = [branch[1:] for branch in record["branches"] if branch[0] == part]
            end, average = next(tuple(rest) for multiple, *rest in group if multiple == 1.0)
            for multiple, at_end, at_average in group:
                pair = (100.0 * (at_end / end - 1.0), 100.0 * (at_average / average - 1.0))
                own.setdefault(multiple, []).append(pair)
    return [
        (multiple, *(statistics.mean(column) for column in zip(*pairs, strict=True)))
        for multiple, pairs in sorted(own.items())
    ]


def section(records: Sequence[Record]) -> list[str]:
    """Title, picture, text and table; nothing without records."""
    tasks = list(dict.fromkeys(record["task"] for record in records))
    if not tasks:
        return []
    multiples = [multiple for multiple, _, _ in means(records, tasks[0])]
    head = " | ".join(f"{multiple:.2g}x" for multiple in multiples)
    lines = ["## Short-horizon bias", "", TEXT, f"![Short-horizon bias](figures/{PICTURE})", ""]
    lines += [f"| task | judged by | {head} |", "|---" * (len(multiples) + 2) + "|"]
    for task in tasks:
        found = means(records, task)
        for name, column in (("last point", 1), ("average", 2)):
            cells = " | ".join(f"{row[column]:+.1f}" for row in found)
            lines.append(f"| {task} | {name} | {cells} |")
    seeds = len({record["seed"] for record in records})
    return [*lines, "", f"Seeds: {seeds}; commit {records[0]['commit']}.", ""]


def draw(records: Sequence[Record], folder: Path) -> list[Path]:
    """One panel a task."""
    tasks = list(dict.fromkeys(record["task"] for record in records))
    if not tasks:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(4.4, 1.75 * len(tasks)), dpi=DPI, layout="constrained")
        panels = figure.subplots(len(tasks), 1, sharex=True, squeeze=False)[:, 0]
        for axes, task in zip(panels, tasks, strict=True):
            found = means(records, task)
            x = [row[0] for row in found]
            axes.plot(x, [row[1] for row in found], "o--", color=ORANGE, label="last point")
            axes.plot(x, [row[2] for row in found], "s-", color=BLUE, label="average")
            axes.axhline(0.0, color="#888888", linewidth=0.8)
            axes.set_xscale("log")
            axes.set_xticks(x, [f"{multiple:.2g}" for multiple in x])
            axes.minorticks_off()
            axes.set_ylim(-20.0, 30.0)
            axes.set_ylabel("% above 1x")
            axes.set_title(task)
        panels[0].legend()
        panels[-1].set_xlabel("rate of the branch, as a multiple of the best held rate")
        save(figure, folder / PICTURE)
    return [folder / PICTURE]
