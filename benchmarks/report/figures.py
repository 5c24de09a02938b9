"""Pictures: the schedules that were found, and the loss against the rate or the start value."""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image  # comes with matplotlib
except ModuleNotFoundError as error:  # pragma: no cover
    raise ModuleNotFoundError("the figures need matplotlib; pip install 'hdet[report]'") from error

from benchmarks.contestants import RATES, SCHEDULES
from benchmarks.report.results import Record, Results
from benchmarks.runs import DIVERGED

# Okabe and Ito's colours, which colour-blind readers tell apart; markers and dashes differ too.
BLACK, ORANGE, SKY, GREEN, BLUE, RED = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
)
STYLES = {"one_cycle": (ORANGE, "o"), "hold_then_anneal": (SKY, "s"), "cosine": (GREEN, "^")}
LABELS = {"one_cycle": "one cycle", "hold_then_anneal": "hold, anneal", "cosine": "cosine"}
SIZE = (4.4, 3.1)
DPI = 150
NUM_COLOURS = 64
SETTINGS: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
START = "autolr:start_value="
DEFAULT_START = 1e-6


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Both pictures of every task that has something to show."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with mpl.rc_context(SETTINGS):
        for task in results.tasks:
            for kind, draw in (("schedules", schedules), ("rates", rates)):
                figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
                axes = figure.subplots()
                if draw(results, task, axes):
                    drawn.append(folder / f"{kind}_{task}.png")
                    save(figure, drawn[-1])
    return drawn


def save(figure: Figure, path: Path) -> None:
    """With a palette of a few colours, which takes a quarter of the space."""
    with io.BytesIO() as buffer:
        figure.savefig(buffer, format="png")
        Image.open(buffer).convert("RGB").quantize(NUM_COLOURS).save(path, optimize=True)


def schedules(results: Results, task: str, axes: Axes) -> bool:
    """The rate over the run: AutoLR by seed, its short-sighted twin, the best cell of the grid."""
    best = results.best_cell(task)
    lines: list[tuple[str, str | None, str, str, float]] = [
        ("best of the grid", best, BLACK, "--", 1.4),
        ("short horizon", "greedy", ORANGE, ":", 1.8),
        ("AutoLR with a probe", "autolr_probe", GREEN, "-.", 1.4),
        ("AutoLR", "autolr", BLUE, "-", 1.8),
    ]
    shown = False
    for label, name, colour, dashes, width in lines:
        records = results.records(task, name) if name else []
        for index, record in enumerate(records[:1] if name == best else records):
            steps, values = _schedule(record)
            shown = shown or bool(steps)
            style: dict[str, Any] = {"color": colour, "linestyle": dashes}
            if index == 0:
                style |= {"label": label}
            thin: dict[str, Any] = {} if index == 0 else {"alpha": 0.55}
            axes.plot(steps, values, linewidth=width if index == 0 else 0.8, **style, **thin)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    axes.set_title(task)
    if shown:
        _legend(axes)
    return shown


def _schedule(record: Record) -> tuple[list[int], list[float]]:
    """Steps and the largest group's rate; at the end it is almost 0, which no axis has room for."""
    inside = record["curve"][:-1]
    points = [(step, max(own)) for step, _, own in inside if own and max(own) > 0.0]
    return [step for step, _ in points], [rate for _, rate in points]


def rates(results: Results, task: str, axes: Axes) -> bool:
    """Loss against the grid's rate, and against AutoLR's start value; AutoLR as a line."""
    heights = []
    for schedule in SCHEDULES:
        colour, marker = STYLES[schedule]
        cells = ((rate, f"{schedule}@{rate:g}") for rate in RATES[results.kinds[task].family])
        points = _means(results, task, cells)
        style = {"color": colour, "marker": marker, "label": LABELS[schedule]}
        heights += _points(axes, points, markersize=4.5, linewidth=1.2, **style)
    auto = _means(results, task, [(DEFAULT_START, "autolr")])
    for _, value in auto:
        axes.axhline(value, color=BLUE, linewidth=1.6, label="AutoLR, no rate given")
    starts = [name for name in results.contestants(task) if _is_start(name)]
    given = ((float(name.removeprefix(START)), name) for name in starts)
    style = {"color": BLUE, "marker": "D", "label": "AutoLR, by start value"}
    if starts:
        points = sorted([*auto, *_means(results, task, given)])
        heights += _points(axes, points, markersize=5.0, linestyle="none", **style)
    heights += [value for _, value in auto]
    _limits(axes, heights)
    axes.set_xscale("log")
    axes.set_xlabel("peak rate of the schedule, or AutoLR's start value")
    axes.set_ylabel("validation loss")
    axes.set_title(task)
    if heights:
        _legend(axes)
    return bool(heights)


def _is_start(name: str) -> bool:
    return name.startswith(START) and "," not in name


def _points(axes: Axes, points: Sequence[tuple[float, float]], **style: Any) -> list[float]:
    """Plot them, if there are any; return their heights."""
    if points:
        axes.plot([x for x, _ in points], [y for _, y in points], **style)
    return [y for _, y in points]


def _means(
    results: Results, task: str, contestants: Iterable[tuple[float, str]]
) -> list[tuple[float, float]]:
    """Position and mean loss, of those with records and without a seed that diverged."""
    losses = ((x, results.losses(task, name)) for x, name in contestants)
    return [
        (x, statistics.fmean(own.values()))
        for x, own in losses
        if own and max(own.values()) < DIVERGED
    ]


def _limits(axes: Axes, values: Sequence[float]) -> None:
    """Losses far above the best would flatten all else: they leave the picture at its top."""
    if len(set(values)) > 1:
        low = min(values)
        high = min(max(values), 1.6 * low)
        axes.set_ylim(low - 0.08 * (high - low), high + 0.04 * (high - low))


def _legend(axes: Axes) -> None:
    """Below the picture, where it hides nothing."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.legend(loc="outside lower center", ncols=2)
