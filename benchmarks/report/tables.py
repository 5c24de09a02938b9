"""Markdown tables from `Results`; what has not been run says so."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.contestants import ABLATIONS, OURS, PEERS, RATES, SCHEDULES
from benchmarks.report.results import Results, Score
from benchmarks.runs import DIVERGED

MISSING = "not run"
NEAR = 1.0
"""Percent of the best of the grid that count as a match."""
NAMES = {
    "autolr": "**AutoLR**",
    "autolr_probe": "**AutoLR, with a probe**",
    "schedulefree": "Schedule-Free",
    "prodigy": "Prodigy",
    "dadapt": "D-Adapt",
    "mechanic": "Mechanic",
    "dog": "DoG",
    "greedylr": "GreedyLR",
    "one_cycle": "one cycle",
    "hold_then_anneal": "hold, then anneal",
    "cosine": "cosine",
}
CHANGES = {
    "greedy": "the slope over one cycle only (short horizon)",
    "autolr:stride=0.0": "no balance: the climb's end value is kept",
    "autolr:noise_price=0.0": "noise costs nothing",
    "autolr:noise_price=1.0": "noise costs all, as if nothing were annealed",
    "autolr:recent_window=0.1": "a shorter recent average",
    "autolr:older_window=1.0": "the older average is the plain mean of the path",
    "autolr:back_off=1.0": "no step back where the climb turns",
    "autolr:settle=1.0": "no wait after the climb",
    "autolr:patience=1000": "strides that never shorten",
    "autolr:doubt=0.0": "signs are believed whatever their significance",
    "autolr:trust=0.0": "where the climb turned is forgotten",
    "autolr:anneal=0.3": "a shorter anneal",
    "autolr:per_group=True": "a rate for each group on its own",
    "autolr:start_value=1e-9": "a start a thousand times lower",
    "autolr:start_value=1e-3": "a start a thousand times higher",
    "autolr:start_value=1e-1": "a start a hundred thousand times higher",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def loss(losses: Mapping[int, float]) -> str:
    """Mean and spread over seeds, or what is wrong."""
    if not losses:
        return MISSING
    bad = sum(value >= DIVERGED for value in losses.values())
    if bad:
        return f"diverged ({bad} of {len(losses)})"
    mean = f"{statistics.fmean(losses.values()):.4g}"
    if len(losses) == 1:
        return mean
    return f"{mean} &plusmn; {statistics.stdev(losses.values()):.1g}"


def percent(score: Score | None, *, plain: bool = False) -> str:
    """A distance and its spread, marked where it rests on fewer seeds than others have."""
    if score is None:
        return MISSING
    if score.num_diverged:
        return "diverged"
    if score.mean > 99.0:
        return "> 99"
    text = f"{score.mean:+.1f}".replace("-0.0", "+0.0")
    if plain:
        return text
    spread = f" &plusmn; {score.std:.1f}" if score.num_seeds > 1 else ""
    few = f" ({score.num_seeds} seed{'s' * (score.num_seeds > 1)})"
    return text + spread + ("" if score.is_complete else few)


def of_task(results: Results, task: str, costs: Mapping[str, float]) -> list[str]:
    """The grid's best, each schedule's, every peer and ours."""
    best = results.best_cell(task)

    def row(label: str, name: str | None, where: str = "") -> list[str]:
        losses = results.losses(task, name) if name else {}
        score = results.score(task, name, best) if name else None
        distance = "0" if name is not None and name == best else percent(score)
        extra = f"{costs[task]:+.1f}" if name == "autolr" and task in costs else ""
        return [label, where, str(len(losses)), loss(losses), distance, extra]

    rows = [row("best of the grid", best, where(results, task, best))]
    for schedule in SCHEDULES:
        cell = results.best_cell(task, [schedule])
        rows.append(row(NAMES[schedule], cell, where(results, task, cell)))
    rows += [row(NAMES[name], name) for name in (*OURS, *PEERS)]
    return table(
        ["", "rate", "seeds", "validation loss", "% off the best", "extra time, %"],
        rows,
    )


def where(results: Results, task: str, cell: str | None) -> str:
    """A cell in words, and whether it lies at an edge of the grid."""
    if cell is None:
        return ""
    schedule, rate = cell.split("@")
    rates = RATES[results.kinds[task].family]
    edge = " (edge)" if float(rate) in (rates[0], rates[-1]) else ""
    return f"{NAMES[schedule]}, {rate}{edge}"


def grid(results: Results, task: str) -> list[str]:
    """All cells, in percent off the best."""
    best = results.best_cell(task)
    rates = [f"{rate:g}" for rate in RATES[results.kinds[task].family]]
    return table(
        ["rate", *rates],
        (
            [
                NAMES[schedule],
                *(_cell(results, task, f"{schedule}@{rate}", best) for rate in rates),
            ]
            for schedule in SCHEDULES
        ),
    )


def _cell(results: Results, task: str, cell: str, best: str | None) -> str:
    return "**0**" if cell == best else percent(results.score(task, cell, best), plain=True)


def summary(results: Results) -> list[str]:
    """Everybody on every task, in percent off that task's best cell."""
    tasks = results.tasks
    rows = []
    for schedule in SCHEDULES:
        scores = [
            results.score(t, cell, results.best_cell(t))
            if (cell := results.best_cell(t, [schedule]))
            else None
            for t in tasks
        ]
        rows.append(_summary_row(f"best {NAMES[schedule]}", scores))
    for name in (*OURS, *PEERS):
        scores = [results.score(t, name, results.best_cell(t)) for t in tasks]
        rows.append(_summary_row(NAMES[name], scores))
    return table(["% off the best cell", *tasks, f"within {NEAR:g} %", "ahead by 1 %"], rows)


def _summary_row(label: str, scores: Sequence[Score | None]) -> list[str]:
    known = [score for score in scores if score is not None]
    near = sum(score.mean <= NEAR for score in known)
    ahead = sum(score.mean <= -NEAR for score in known)
    cells = [percent(score) for score in scores]
    return [label, *cells, *((f"{n} of {len(known)}" if known else MISSING) for n in (near, ahead))]


def against_peers(results: Results) -> list[str]:
    """On how many tasks ours end lower than each peer, and where they do not."""
    rows = []
    for peer in PEERS:
        cells = []
        for name in OURS:
            ahead = {t: results.is_ahead(t, name, peer) for t in results.tasks}
            known = {t: won for t, won in ahead.items() if won is not None}
            lost = [t for t, won in known.items() if not won]
            text = f"{sum(known.values())} of {len(known)}" if known else MISSING
            cells.append(text + (f", not on {', '.join(lost)}" if lost else ""))
        rows.append([NAMES[peer], *cells])
    return table(["tasks on which it ends lower than", *(NAMES[name] for name in OURS)], rows)


def ablations(results: Results) -> list[str]:
    """One thing changed at a time, in percent above AutoLR as it is."""
    extra = {
        name: None
        for task in results.tasks
        for name in results.contestants(task)
        if name.startswith("autolr:") and name not in ABLATIONS
    }
    rows = []
    for name in (*ABLATIONS, *extra):
        scores = [results.score(task, name, "autolr") for task in results.tasks]
        shown = f"`{name.removeprefix('autolr:')}`"
        rows.append([shown, CHANGES.get(name, ""), *map(percent, scores)])
    return table(["% above AutoLR", "what it means", *results.tasks], rows)


def extra_time(costs: Mapping[str, Any]) -> dict[str, float]:
    """Percent that AutoLR adds to a task's run, where it was measured."""
    return {row["task"]: 100.0 * (row["ratio"] - 1.0) for row in costs.get("runs", [])}
