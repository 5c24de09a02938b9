"""`hdet.Checkpointer` in one process: what it saves, when, and that a run goes on to the bit."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hdet
from hdet.checkpointing import contents, randomness
from tests.interruptible import CYCLE_STEPS, SCHEDULERS, Run, S


def steps_in(directory: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in directory.glob("*.pt"))


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_stopped_run_ends_as_one_that_was_not(tmp_path: Path, kind: str) -> None:
    whole = Run(tmp_path / "whole", kind).train()
    for stop in (13, 30, 48):
        Run(tmp_path / "stopped", kind).train(stop)
    last = Run(tmp_path / "stopped", kind)
    assert 0 < last.start <= 48
    assert torch.equal(last.train(), whole)


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("at", [3, 17, 25])
def test_a_checkpoint_inside_a_cycle_is_exact_too(
    tmp_path: Path, kind: str, optimizer: str, at: int
) -> None:
    """The run that wrote it converged for it, and goes on as the one that loads it."""
    whole = Run(tmp_path / "whole", kind, optimizer).train(save_at=at)
    stopped = Run(tmp_path / "stopped", kind, optimizer)
    stopped.train(at, save_at=at)
    resumed = Run(tmp_path / "stopped", kind, optimizer)
    assert resumed.start == at
    assert torch.equal(resumed.train(), whole)


@pytest.mark.parametrize("without", ["random", "scheduler"])
def test_without_a_part_of_it_the_run_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    """Negative control: each part is needed, and the comparison can fail."""
    whole = Run(tmp_path / "whole").train(save_at=17)
    Run(tmp_path / "stopped").train(17, save_at=17)
    load = contents.Contents.load

    def partly(self: Any, saved: dict[str, Any], rank: int, num_ranks: int) -> list[str]:
        fresh = self.of_run(0, [self.of_rank()])
        if without == "scheduler":
            saved["objects"]["scheduler"] = {
                **fresh["objects"]["scheduler"],
                "last_epoch": saved["objects"]["scheduler"]["last_epoch"],
            }
        else:
            saved["ranks"][0][without] = fresh["ranks"][0][without]
        return load(self, saved, rank, num_ranks)

    monkeypatch.setattr(contents.Contents, "load", partly)
    assert not torch.equal(Run(tmp_path / "stopped").train(), whole)


def test_saving_at_the_ends_of_cycles_changes_nothing(tmp_path: Path) -> None:
    often = Run(tmp_path / "often", every_cycles=1).train()
    assert torch.equal(Run(tmp_path / "never", every_cycles=100).train(), often)
    assert steps_in(tmp_path / "never") == []


@pytest.mark.parametrize("kind", ["OneCycleLR with a spread", "OneCycleLR"])
def test_every_so_many_cycles_and_the_last_two_are_kept(tmp_path: Path, kind: str) -> None:
    Run(tmp_path, kind, every_cycles=2).train()
    assert steps_in(tmp_path) == [42, 56]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".pt"] * 2 + [".sha256"] * 2


def test_all_generators_go_on(tmp_path: Path) -> None:
    run = Run(tmp_path)
    random.seed(1)
    np.random.seed(1)
    random.gauss(0.0, 1.0)
    run.train(CYCLE_STEPS)
    expected = [random.random(), random.gauss(0.0, 1.0), np.random.rand(), torch.rand(()).item()]
    Run(tmp_path)
    found = [random.random(), random.gauss(0.0, 1.0), np.random.rand(), torch.rand(()).item()]
    assert found == expected


def test_generators_that_are_derived_differ_and_repeat() -> None:
    names = ["torch", "python", "numpy", "devices"]
    drawn = []
    for key in ("a", "b", "a"):
        randomness.derive(names, key, [])
        drawn.append((torch.rand(()).item(), random.random(), np.random.rand()))
    assert drawn[0] == drawn[2]
    assert all(one != other for one, other in zip(drawn[0], drawn[1], strict=True))


class Position:
    """What a data loader with a state does."""

    def __init__(self) -> None:
        self.at: Any = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("per_rank", [(), ("data",), "data"])
def test_other_objects_go_on(tmp_path: Path, per_rank: Any) -> None:
    data, generator = Position(), torch.Generator()
    run = Run(tmp_path, data=data, noise=generator, per_rank=per_rank)
    data.at = [3, "x", None, torch.ones(2)]
    torch.rand(3, generator=generator)
    run.train(CYCLE_STEPS)
    expected = torch.rand(3, generator=generator)
    again, fresh = Position(), torch.Generator()
    Run(tmp_path, data=again, noise=fresh, per_rank=per_rank)
    assert repr(again.at) == repr(data.at)
    assert torch.equal(torch.rand(3, generator=fresh), expected)


@pytest.mark.parametrize("value", [Path("x"), np.float64(1.0), lambda: 0, range(3), nn.ReLU()])
def test_a_state_that_could_not_be_loaded_is_not_saved(tmp_path: Path, value: Any) -> None:
    data = Position()
    run = Run(tmp_path, data=data)
    data.at = {"deep": [value]}
    expected = r"data\['at'\]\['deep'\]\[0\] must be of plain types and tensors, got a .*; let the"
    with pytest.raises(hdet.errors.InvalidTypeError, match=expected):
        run.train(CYCLE_STEPS)
    assert list(tmp_path.iterdir()) == []


def test_objects_by_other_names_are_refused(tmp_path: Path) -> None:
    Run(tmp_path, data=Position()).train(CYCLE_STEPS)
    with pytest.raises(hdet.HDETError, match=r"must hold \['model', .* got \['data', 'model'"):
        Run(tmp_path)


def test_a_model_may_be_wrapped_or_not(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.train(CYCLE_STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.compile's own
        compiled = torch.compile(nn.Linear(3, 3))
    assert type(contents.bare(compiled)) is nn.Linear
    state = torch.load(tmp_path / "step-00000007.pt", weights_only=True)
    assert state["objects"]["model"].keys() == run.model.state_dict().keys()


def test_a_checkpoint_at_another_number_of_virtual_replicas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Run(tmp_path, replicas=4).train(17, save_at=17)
    resumed = Run(tmp_path, replicas=2)
    assert resumed.start == 17
    assert "a state of 4 replicas goes on at 2" in caplog.text
    assert bool(torch.isfinite(resumed.train()).all())


def test_per_rank_parts_are_small(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert len(run.checkpointer._contents.of_rank()) < 25_000


def test_steps_before_restore_do_not_replace_another_runs_checkpoints(tmp_path: Path) -> None:
    Run(tmp_path).train(CYCLE_STEPS)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = hdet.OneCycleLR(optimizer, 0.1, total_steps=S)
    fresh = hdet.Checkpointer(tmp_path, model=model, optimizer=optimizer, scheduler=scheduler)
    with pytest.raises(hdet.errors.UsageError, match=r"restore\(\) was not called"):
        fresh.step()
    with pytest.raises(hdet.errors.UsageError, match=r"restore\(\) was not called"):
        fresh.save()
    empty = hdet.Checkpointer(
        tmp_path / "new", model=model, optimizer=optimizer, scheduler=scheduler
    )
    optimizer.step()
    scheduler.step()
    assert empty.save() == tmp_path / "new" / "step-00000000.pt"


def test_the_run_that_goes_on_replaces_what_came_after_its_start(tmp_path: Path) -> None:
    """A damaged newest file does not stand in the way of the newest that is sound."""
    Run(tmp_path).train(16)
    (tmp_path / "step-00000014.pt").write_bytes(b"")
    run = Run(tmp_path)
    assert run.start == 7
    for _ in range(3):
        run.step()
    run.checkpointer.save()
    assert steps_in(tmp_path) == [7, 10]
