"""Replicas that do not come to a message: an error that names them, and no hang.

The time limit is the process group's own, `init_process_group(timeout=...)`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import hdet
from tests.one_parameter import one_parameter, scheduler_of
from tests.pool import Pool

pytestmark = pytest.mark.distributed

SCRIPT = """
import datetime, os, signal, sys, time
import torch, torch.distributed as dist, hdet
from tests.one_parameter import one_parameter, scheduler_of

kind, rank, size, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
store = dist.FileStore(path, size)
limit = datetime.timedelta(seconds=3)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
scheduler = scheduler_of(one_parameter()[1], auto_lr=True)
for step in range(8):
    scheduler.optimizer.step()
    if rank == 1 and step == 5:
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "asleep":
            time.sleep(30)
        if kind == "converges":
            scheduler.converge()
    try:
        scheduler.step(1.0)
    except hdet.HDETError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(3)
print("no error", flush=True)
os._exit(0)
"""


def outputs(kind: str, tmp_path: Path, size: int = 3) -> tuple[list[str], float]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    start = time.monotonic()
    store = str(tmp_path / "store")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), kind, str(rank), str(size), store],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(size)
    ]
    found = []
    for rank, process in enumerate(processes):
        if kind == "asleep" and rank == 1:
            continue
        found.append(process.communicate(timeout=90)[0].strip())
    took = time.monotonic() - start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()
    return found, took


@pytest.mark.parametrize("kind", ["killed", "asleep"])
def test_who_died_or_takes_fewer_steps_is_named_within_the_limit(kind: str, tmp_path: Path) -> None:
    found, took = outputs(kind, tmp_path)
    survivors = [found[0], found[-1]]
    for line in survivors:
        assert re.search(
            r"^ReplicaLostError: replicas must exchange message \d+ together, .*where replicas "
            r"\[0, 2\] came, \[1\] did not; look at the output",
            line,
        ), line
        assert "\n" not in line
    assert took < 45.0


def test_a_converge_that_others_do_not_call_is_no_hang(tmp_path: Path) -> None:
    found, took = outputs("converges", tmp_path)
    assert any("Error: replicas must" in line for line in found), found
    assert took < 45.0


def destroyed(rank: int) -> str:
    scheduler = scheduler_of(one_parameter()[1], cycle_steps=2)
    scheduler.optimizer.step()
    scheduler.step(1.0)
    dist.destroy_process_group()
    try:
        scheduler.optimizer.step()
        scheduler.step(1.0)
    except hdet.HDETError as error:
        return str(error)
    return f"no error on {rank}"


def test_a_group_that_was_destroyed_is_named(pool: Pool) -> None:
    for line in pool.run(destroyed, 2):
        assert "must keep their process group, got one that has been destroyed; call" in line


def other_calls(rank: int, calls: dict[int, list[str]]) -> str:
    """Ranks that follow different scripts, up to a converge on all of them."""
    scheduler: Any = scheduler_of(one_parameter()[1], cycle_steps=50, total_steps=200)
    try:
        for call in calls[rank]:
            if call == "step":
                scheduler.optimizer.step()
                scheduler.step(1.0)
            else:
                scheduler.converge()
    except hdet.HDETError as error:
        return str(error)
    return "no error"


def test_a_converge_at_different_steps_is_named(pool: Pool) -> None:
    calls = {0: ["step"] * 3 + ["converge"], 1: ["step"] * 4 + ["converge"]}
    for line in pool.run(other_calls, 2, calls):
        assert "the number of steps taken, got 3 on replica 0 and 4 on replica 1" in line
