"""Ratios on a noisy machine: interleave the two sides in short windows and take the median."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, windows: int, calls: int
) -> dict[str, list[float]]:
    """Seconds a call of each candidate in each window; every window times all of them in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(windows):
        for name, call in candidates.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            seconds[name].append((time.perf_counter() - start) / calls)
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, baseline: str) -> float:
    """Median over windows of a candidate's time relative to the baseline's in the same window."""
    pairs = zip(seconds[name], seconds[baseline], strict=True)
    return statistics.median(own / other for own, other in pairs)


@functools.cache
def commit() -> str:
    """The commit, with a + behind it if the code differs from it; "unknown" without git."""
    if shutil.which("git") is None:
        return "unknown"

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )

    name = git("rev-parse", "--short", "HEAD").stdout.strip()
    changed = git("diff", "--quiet", "HEAD", "--", "src", "benchmarks/*.py").returncode
    return (name or "unknown") + ("+" if name and changed else "")


def provenance() -> dict[str, Any]:
    """Where and from what a result was measured."""
    threads = torch.get_num_threads()
    return {
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{threads} thread{'s' if threads > 1 else ''}",
    }
