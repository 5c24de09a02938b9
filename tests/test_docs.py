"""What the documentation shows runs: its code blocks, the examples, the command line."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet import cli
from hdet.cli import byte_model

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]


def blocks_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


BLOCKS = [(page, index) for page in PAGES for index in range(len(blocks_of(page)))]


def namespace() -> dict[str, Any]:
    """What the text around the blocks takes for granted."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return {
        "torch": torch,
        "hdet": hdet,
        "S": 24,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "loader": [torch.randn(16, 4) for _ in range(12)],
        "loss_fn": lambda net, batch: net(batch).pow(2).mean(),
    }


@pytest.mark.parametrize(("page", "index"), BLOCKS)
def test_code_block_runs(
    page: str, index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # checkpoints are written where a block says
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hdet.HDETWarning)  # one process has no spread
        exec(compile(blocks_of(page)[index], f"{page}[{index}]", "exec"), namespace())


def test_the_readme_names_its_commands_and_stays_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    assert len(text.splitlines()) <= 150


def run_python(*arguments: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_one_gpu_example_learns() -> None:
    losses = re.findall(r"loss ([\d.]+)", run_python("examples/one_gpu.py"))
    assert float(losses[-1]) < float(losses[0])


@pytest.mark.distributed
def test_the_ddp_example_runs_under_torchrun() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    result = subprocess.run(
        [sys.executable, *launch, "examples/ddp.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    # On a busy machine gloo aborts now and then at exit, after all is done: so does DDP with
    # one all_reduce and without hdet.
    aborted = "terminate called without an active exception" in result.stderr
    assert result.returncode == 0 or aborted, result.stderr
    assert re.search(r"loss [\d.]+, base rate [\d.e-]+", result.stdout)


@pytest.mark.distributed
def test_the_restart_example_goes_on_where_it_was(tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    shown = []
    for _ in range(2):  # the second time nothing is left to do
        result = subprocess.run(
            [sys.executable, *launch, "examples/restart.py", str(tmp_path / "checkpoints")],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        shown += re.findall(r"sum of the weights (-?[\d.]+)", result.stdout)
    assert "going on at step 400 from" in result.stderr
    assert len(shown) == 2
    assert shown[0] == shown[1]


SMALL = ["demo", "--steps", "4", "--replicas", "2", "--sequences", "1", "--cycle-steps", "2"]


def test_the_demo_prints_both_losses(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(SMALL) == 0
    shown = capsys.readouterr().out
    assert len(re.findall(r"OneCycleLR .*\d\.\d{4} .*\d\.\d{4}", shown)) == 2
    assert "same batches" in shown


def test_the_demo_runs_with_one_replica(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(hdet.HDETWarning, match="single replica"):
        assert cli.main([*SMALL, "--replicas", "1"]) == 0
    assert "OneCycleLR" in capsys.readouterr().out


def test_the_demo_trains_on_one_thread_and_gives_the_others_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With several threads and a busy core, every small operation waits for a spinning one."""
    seen = []
    monkeypatch.setattr(
        "hdet.cli.demo._compare", lambda options: seen.append(torch.get_num_threads())
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert cli.main(SMALL) == 0
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_the_demo_shows_its_progress_in_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hdet.cli.demo.LINE_STEPS", 2)
    assert cli.main(SMALL) == 0
    shown = re.findall(r"^step (\d)/4 .*hdet", capsys.readouterr().out, re.MULTILINE)
    assert shown == ["2", "4"]


def test_the_demo_prints_its_warnings_in_one_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "hdet", *SMALL, "--cycle-steps", "5"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert result.stderr.startswith("hdet demo: warning: cycle_steps=5 is longer than the run")
    assert len(result.stderr.splitlines()) == 1


def test_without_a_spread_both_demos_are_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SMALL, "--spread", "0", "--replicas", "1"]) == 0
    numbers = re.findall(r"(\d\.\d{4}) .*?(\d\.\d{4})", capsys.readouterr().out)
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps must be an integer >= 1"),
        (["--spread", "1.5"], "spread_ratio"),
        (["--max-lr", "-1"], r"--max-lr must be a finite number in (0, inf], got -1.0"),
        (["--max-lr", "nan"], "--max-lr must be a finite number"),
    ],
)
def test_the_command_fails_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("hdet demo: ")
    assert message in shown
    assert len(shown.splitlines()) == 1


def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["dance"], ["demo", "--steps", "many"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
    assert "usage: hdet" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        (["demo", "--help"], "--max-lr"),
        (["--version"], hdet.__version__),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 0
        assert expected in capsys.readouterr().out


def test_an_interrupt_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(max_bytes: int) -> Any:
        raise KeyboardInterrupt(max_bytes)

    monkeypatch.setattr("hdet.cli.demo.corpus", interrupted)
    assert cli.main(["demo"]) == 1
    assert "stopped" in capsys.readouterr().err


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert cli.main(["demo"]) == 1
    assert "hdet[cli]" in capsys.readouterr().err


def test_an_interpreter_without_sources_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(hdet.errors.UsageError, match="found 0 files"):
        byte_model.corpus(1000)


def test_the_corpus_keeps_validation_apart() -> None:
    train, validation = byte_model.corpus(300_000)
    assert bytes(validation[:200].tolist()) not in bytes(train.tolist())
    drawn = byte_model.draw(train, 3, 16, seed=1)
    assert drawn.shape == (3, 17)
    assert torch.equal(drawn, byte_model.draw(train, 3, 16, seed=1))


def test_make_refuses_an_old_python_before_it_installs_anything(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    pretend = "import sys; sys.version_info = (3, 10, 4); exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$2"\n')
    old.chmod(0o755)
    venv = tmp_path / "venv"
    result = subprocess.run(
        ["make", "setup", f"PYTHON={old}", f"VENV={venv}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode != 0
    assert result.stderr.splitlines()[0].startswith("PYTHON must be 3.11 or newer, got 3.10; run")
    assert not venv.exists()


def test_python_dash_m_works() -> None:
    assert "hdet" in run_python("-m", "hdet", "--version")
