"""The one entry point: ``python -m benchmarks COMMAND``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import core, horizon, overhead, runs, stacked, study, timing
from benchmarks.tasks import SUITES, TASKS, expand

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
HORIZON = "horizon.jsonl"
QUICK = ROOT / "runs" / "quick"
"""Where trials of the machinery go; git ignores it."""


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command")
    commands.add_parser("core", help="what step() and converge() cost")
    commands.add_parser("overhead", help="what AutoLR adds to the time of a run")
    auto = commands.add_parser("autolr", help="AutoLR, the tuned grid, and rate-free peers")
    auto.add_argument(
        *("--tasks", "--task"),
        nargs="+",
        choices=[*SUITES, *TASKS],
        default=["main"],
        metavar="T",
        help=f"tasks, or suites of them: {', '.join(SUITES)}; default: main",
    )
    auto.add_argument("--seeds", type=int, default=3)
    auto.add_argument("--contestants", default=study.DEFAULT, metavar="A,B")
    auto.add_argument("--workers", type=int, default=2)
    auto.add_argument("--redo", action="store_true", help="run again what these contestants have")
    auto.add_argument("--quick", action="store_true", help="60 steps a run, into runs/quick")
    branches = commands.add_parser("horizon", help="which rate looks best a few steps ahead")
    branches.add_argument("--seeds", type=int, default=2)
    branches.add_argument("--workers", type=int, default=2)
    stacked.add_parser(commands)
    render = commands.add_parser("render", help="make the pages and figures from the raw results")
    render.add_argument("--quick", action="store_true", help="of the trial, into runs/quick")
    return top


def compare(options: argparse.Namespace) -> None:
    """Run the study, resuming where its file stands."""
    names, tasks = study.chosen(options.contestants), expand(options.tasks)
    path = (QUICK if options.quick else RESULTS) / "autolr.jsonl"
    if options.redo:
        if "grid" in names:
            raise SystemExit("--redo takes the contestants to run again, not the grid")
        print(runs.forget(path, tasks, names), "records dropped")
    for line in study.run(
        tasks,
        names,
        seeds=options.seeds,
        path=path,
        num_workers=options.workers,
        total_steps=study.QUICK_STEPS if options.quick else None,
    ):
        print(line, flush=True)


def look_ahead(options: argparse.Namespace) -> None:
    """Branches from each task's best held rate in the grid's results."""
    path = RESULTS / "autolr.jsonl"
    grid = [record for record in runs.load(path) if record["task"] in SUITES["main"]]
    for line in horizon.run(grid, path.parent / HORIZON, options.seeds, options.workers):
        print(line, flush=True)


def render(docs: Path, records: Path) -> None:
    """Both pages and the figures."""
    from benchmarks import report  # needs matplotlib

    costs = _read("overhead")
    page = core.render(_read("core")) + overhead.render(costs)
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "performance.md").write_text(page)
    branches, lanes = (runs.load(records.parent / name) for name in (HORIZON, stacked.FILE))
    report.write(runs.load(records), costs, docs, branches, lanes)
    print("wrote", docs / "performance.md", docs / "results.md", docs / "figures")


def _measure(name: str) -> None:
    commit = timing.commit()  # of the code that runs, whatever changes meanwhile
    measured = core.measure() if name == "core" else overhead.measure()
    RESULTS.mkdir(exist_ok=True)
    results = {"provenance": {**timing.provenance(), "commit": commit}, **measured}
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")


def _read(name: str) -> dict[str, object]:
    path = RESULTS / f"{name}.json"
    found: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or render what was measured."""
    options = parser().parse_args(arguments)
    if options.command == "autolr":
        try:
            compare(options)
        except ValueError as error:
            sys.exit(f"error: {error}")
    elif options.command == "horizon":
        look_ahead(options)
    elif options.command == "stacked":
        try:
            stacked.main(options, QUICK if options.quick else RESULTS)
        except ValueError as error:
            sys.exit(f"error: {error}")
    elif options.command == "render":
        if options.quick:
            render(QUICK, QUICK / "autolr.jsonl")
        else:
            render(ROOT / "docs", RESULTS / "autolr.jsonl")
    else:
        _measure(options.command or "core")


if __name__ == "__main__":
    main()
