"""`hdet.Checkpointer` under torchrun: ranks that are killed, and a run that ends as if none was.

Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 as here: torchrun else keeps the addresses of dead ranks
(https://github.com/pytorch/pytorch/issues/135712), and new ones cannot find each other, be it with
hdet or without.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.survivor import WHERE

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parent.parent
KINDS = ("OneCycleLR", "AutoLR", "exploring AutoLR")
Plan = list[tuple[int, str, int]]
Ending = dict[str, Any]


def launch(
    kind: str, folder: Path, total_steps: int, plan: Plan, *, torchrun: bool = False, **more: str
) -> subprocess.Popen[bytes]:
    """By torchrun, or by its agent alone, which is four times as fast."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.relaunch", str(len(plan))]
    if torchrun:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", f"--max-restarts={len(plan)}", "-m", "tests.survivor"]
    command += [kind, str(folder), str(total_steps), json.dumps(plan)]
    own = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **more}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **own}, stdout=log, stderr=subprocess.STDOUT
        )


def train(
    kind: str, folder: Path, total_steps: int, plan: Plan, *, torchrun: bool = False
) -> Ending:
    """How the run ended; whether the launcher says so too does not matter here.

    On a busy machine gloo aborts now and then at exit, after all is done.
    """
    process = launch(kind, folder, total_steps, plan, torchrun=torchrun)
    try:
        process.wait(timeout=100)
    finally:
        process.kill()
    assert (folder / "end.pt").exists(), (folder / "log").read_text()[-8000:]
    found: Ending = torch.load(folder / "end.pt", weights_only=True)
    return found


def kills(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("killed-*"))]


def check_equal(found: Ending, expected: Ending) -> None:
    assert torch.equal(found["point"], expected["point"])
    assert found["base"] == expected["base"]
    assert bool(torch.isfinite(found["point"]).all())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that nobody interrupts, once for each kind and length."""
    endings: dict[tuple[str, int], Ending] = {}

    def ending(kind: str, total_steps: int) -> Ending:
        if (kind, total_steps) not in endings:
            folder = tmp_path_factory.mktemp("undisturbed")
            endings[kind, total_steps] = train(kind, folder, total_steps, [])
        return endings[kind, total_steps]

    return ending


def test_three_kills_under_torchrun(tmp_path: Path, undisturbed: Any) -> None:
    """In the middle of a step, of a converge, and of a checkpoint."""
    plan: Plan = [(1, "step", 6), (0, "converge", 2), (0, "write", 3)]
    found = train("OneCycleLR", tmp_path, 30, plan, torchrun=True)
    assert kills(tmp_path) == [
        "step at step 6, begun at 0",
        "converge at step 6, begun at 4",
        "write at step 7, begun at 4",
    ]
    check_equal(found, undisturbed("OneCycleLR", 30))
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == [
        "step-00000024.pt",
        "step-00000024.pt.sha256",
        "step-00000028.pt",
        "step-00000028.pt.sha256",
    ]


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path, undisturbed: Any) -> None:
    generator = random.Random(0)
    plan: Plan = []
    for _ in range(20):
        where = generator.choice(WHERE)
        rank = 0 if where in ("write", "rename") else generator.randrange(2)
        plan.append((rank, where, generator.randrange(9)))
    found = train("OneCycleLR", tmp_path, 100, plan)
    assert len(kills(tmp_path)) == 20
    check_equal(found, undisturbed("OneCycleLR", 100))


@pytest.mark.parametrize("kind", ["AutoLR", "exploring AutoLR"])
def test_kills_while_the_rate_is_found(tmp_path: Path, undisturbed: Any, kind: str) -> None:
    plan: Plan = [(0, "write", 5), (1, "step", 7), (0, "rename", 1), (0, "step", 30)]
    found = train(kind, tmp_path, 100, plan)
    assert len(kills(tmp_path)) == 4
    check_equal(found, undisturbed(kind, 100))


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_on_one_rank_is_followed_by_a_checkpoint_of_all(
    tmp_path: Path, undisturbed: Any, rank: int
) -> None:
    """Inside a cycle; without a spread there is nothing to converge, so nothing differs either."""
    found = train("AutoLR", tmp_path, 60, [(rank, "terminate", 17)])
    assert kills(tmp_path) == ["terminate at step 17, begun at 0"]
    log = (tmp_path / "log").read_text()
    assert "SIGTERM: the run ends at step 18, after its last checkpoint" in log
    check_equal(found, undisturbed("AutoLR", 60))


def test_sigterm_to_the_launcher_as_a_cluster_sends_it(tmp_path: Path, undisturbed: Any) -> None:
    process = launch("AutoLR", tmp_path, 60, [], PAUSE_S="0.2")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("checkpoints/*.sha256")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) != 0
    log = (tmp_path / "log").read_text()
    assert "after its last checkpoint" in log, log[-8000:]
    assert not (tmp_path / "end.pt").exists()
    check_equal(train("AutoLR", tmp_path, 60, []), undisturbed("AutoLR", 60))
