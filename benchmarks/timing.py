"""Ratios on a noisy machine: interleave the two sides in short windows and take the median."""

from __future__ import annotations

import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


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


def provenance() -> dict[str, Any]:
    """Where and from what a result was measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "commit": commit or "unknown",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }
