"""``python -m benchmarks stacked``."""

from __future__ import annotations

import argparse
import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks import study
from benchmarks.stacked.data import Corpus, library
from benchmarks.stacked.study import DEFAULT, FILE, Plan, run
from benchmarks.stacked.task import FULL, QUICK

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: Commands) -> None:
    """The command's options."""
    parser = commands.add_parser("stacked", help="many configurations of a GPT at once, on a GPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, nargs="+", default=[2000], help="lengths of runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--contestants", default=DEFAULT, metavar="A,B")
    parser.add_argument("--precision", choices=["bf16", "fp32"], help="bf16 on a GPU")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--max-seconds", type=float, default=math.inf, metavar="N")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="bytes; Python's own library")
    parser.add_argument("--write-corpus", type=Path, metavar="FILE", help="write it, and no more")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines, appended to")
    parser.add_argument("--commit", help="of the code, where there is no git")
    parser.add_argument("--quick", action="store_true", help="a tiny model, into runs/quick")


def main(options: argparse.Namespace, folder: Path) -> None:
    """Run the study, or write the corpus that it takes."""
    if options.write_corpus is not None:
        data = library()
        options.write_corpus.write_bytes(data)
        print(f"{Corpus.of(data).name}, written to {options.write_corpus}")
        return
    device = torch.device(options.device)
    precision = options.precision or ("bf16" if device.type == "cuda" else "fp32")
    plan = Plan(
        names=study.chosen(options.contestants),
        steps=options.steps,
        seeds=options.seeds,
        path=options.out or folder / FILE,
        device=device,
        size=QUICK if options.quick else FULL,
        half=precision == "bf16",
        compiled=not options.eager,
        max_seconds=options.max_seconds,
        commit=options.commit,
    )
    run(plan, Corpus.load(options.corpus), functools.partial(print, flush=True))
