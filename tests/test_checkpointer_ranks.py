"""`hdet.Checkpointer` on gloo processes: what ranks agree on, and other numbers of them."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hdet
from hdet.checkpointing import files, stopping
from tests.pool import Pool

pytestmark = pytest.mark.distributed

S, T = 30, 5


class Note:
    """Any small state that each rank may have of its own."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def state_dict(self) -> dict[str, Any]:
        return {"text": self.text}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.text = state["text"]


class Ranked:
    """One rank of a run without DDP, whose gradients are shared by hand."""

    def __init__(self, rank: int, directory: str, *, kind: str = "OneCycleLR", **more: Any) -> None:
        self.rank, self.size = rank, dist.get_world_size() if dist.is_initialized() else 1
        torch.manual_seed(rank)
        random.seed(rank)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1)).double()
        if self.size > 1:
            for own in self.model.parameters():
                dist.broadcast(own.data, src=0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        settings: dict[str, Any] = {"max_lr": 0.02, "spread_ratio": 0.3, "cycle_steps": T}
        if kind == "AutoLR":
            self.scheduler: Any = hdet.AutoLR(self.optimizer, S, spread_ratio=0.3)
        elif kind == "virtual":
            virtual = hdet.VirtualReplicas(2)
            self.scheduler = hdet.OneCycleLR(
                self.optimizer, total_steps=S, replicas=virtual, **settings
            )
        else:
            self.scheduler = hdet.OneCycleLR(
                self.optimizer, total_steps=S, auto_lr=True, warmup_steps=T, **settings
            )
        self.checkpointer = hdet.Checkpointer(
            directory,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            **more,
        )

    def step(self) -> None:
        x = torch.randn(6, 4, dtype=torch.float64)
        loss = (self.model(x) - x[:, :1] * random.random()).square().mean()
        loss.backward()
        if self.size > 1:
            for own in self.model.parameters():
                assert own.grad is not None
                dist.all_reduce(own.grad)
                own.grad /= self.size
        self.optimizer.step()
        self.optimizer.zero_grad()
        losses = [loss.detach()] * self.scheduler.ensemble.replicas.num_local
        self.scheduler.step(torch.stack(losses))

    def train(self, start: int, stop: int = S) -> list[float]:
        for _ in range(start, stop):
            self.step()
            self.checkpointer.step()
        self.checkpointer.close()
        return self.point()

    def point(self) -> list[float]:
        parts = [own.detach().reshape(-1) for own in self.model.parameters()]
        return torch.cat(parts).tolist()


def trained(rank: int, directory: str, stop: int, kind: str, save: bool) -> Any:
    run = Ranked(rank, directory, kind=kind)
    start = run.checkpointer.restore()
    run.train(start, stop)
    if save:
        run.checkpointer.save()
    if save and start == 0:
        run.train(stop)
    return start, run.point(), run.scheduler.ensemble.base_values


@pytest.mark.parametrize("kind", ["OneCycleLR", "AutoLR", "virtual"])
@pytest.mark.parametrize("stop", [7, 12])
def test_ranks_go_on_to_the_bit_from_inside_a_cycle(
    pool: Pool, tmp_path: Path, kind: str, stop: int
) -> None:
    """Each rank has its own dropout, losses and samples; AutoLR here explores."""
    whole = pool.run(trained, 2, str(tmp_path / "whole"), stop, kind, True)
    saved = tmp_path / "saved"
    saved.mkdir()
    name = f"step-{stop:08d}.pt"
    pool.run(written_at, 2, str(saved), stop, kind)
    assert (saved / name).exists()
    resumed = pool.run(trained, 2, str(saved), S, kind, False)
    for own, other in zip(resumed, whole, strict=True):
        assert own[0] == stop
        assert own[1:] == other[1:]


def written_at(rank: int, directory: str, stop: int, kind: str) -> None:
    run = Ranked(rank, directory, kind=kind)
    run.train(run.checkpointer.restore(), stop)
    run.checkpointer.save()


def resumed(rank: int, directory: str, kind: str) -> Any:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hdet").addHandler(handler)
    note = Note("fresh")
    try:
        run = Ranked(rank, directory, kind=kind, data=note, per_rank=["data"])
        start = run.checkpointer.restore()
    finally:
        logging.getLogger("hdet").removeHandler(handler)
    drawn = (torch.rand(()).item(), random.random())
    state = run.scheduler.state_dict()["ensemble"]
    kept = {key: state[key] for key in ("step", "cycle", "cycle_end", "hyperparameters")}
    point = run.point()
    run.train(start)
    return start, point, kept, drawn, note.text, records


def saving(rank: int, directory: str, stop: int, text: str) -> Any:
    note = Note(text.format(rank=rank))
    run = Ranked(rank, directory, data=note, per_rank=["data"])
    run.train(run.checkpointer.restore(), stop)
    state = run.scheduler.state_dict()["ensemble"]
    kept = {key: state[key] for key in ("step", "cycle", "cycle_end", "hyperparameters")}
    return run.point(), kept


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 4), (2, 1)])
def test_another_number_of_ranks_goes_on(
    pool: Pool, tmp_path: Path, before: int, after: int
) -> None:
    if before == 1:
        pool.run(alone, 1, str(tmp_path))
        saved = None
    else:
        saved = pool.run(saving, before, str(tmp_path), 2 * T, "rank {rank}")
    found = pool.run(resumed, after, str(tmp_path), "OneCycleLR") if after > 1 else None
    if found is None:
        found = pool.run(resumed, 1, str(tmp_path), "virtual", group=False)
    assert {own[0] for own in found} == {2 * T}
    if saved is not None and after > 1:
        assert all(own[1] == saved[0][0] and own[2] == saved[0][1] for own in found)
    assert len({own[3] for own in found}) == after, "each rank draws its own"
    text = "alone" if before == 1 else "fresh"
    assert all(own[4] == text for own in found)
    assert len(found[0][5]) == 1
    expected = f"saved by {before} ranks and is loaded by {after}: begun anew: "
    assert expected in found[0][5][0]
    assert "random numbers (torch)" in found[0][5][0]


def alone(rank: int, directory: str) -> None:
    run = Ranked(rank, directory, kind="virtual", data=Note("alone"), per_rank=["data"])
    run.train(run.checkpointer.restore(), 2 * T)


def test_what_all_ranks_had_in_common_is_kept_at_another_number(pool: Pool, tmp_path: Path) -> None:
    pool.run(saving, 2, str(tmp_path), T, "common")
    assert [own[4] for own in pool.run(resumed, 3, str(tmp_path), "OneCycleLR")] == ["common"] * 3


def unsound_on(rank: int, directory: str, bad_rank: int) -> Any:
    """One rank sees a damaged file, as on a cache of its own."""
    own = Path(directory) / f"seen-by-{rank}"
    shutil.copytree(Path(directory) / "saved", own)
    if rank == bad_rank:
        (own / "step-00000010.pt").write_bytes(b"torn")
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hdet").addHandler(handler)
    run = Ranked(rank, str(own))
    start = run.checkpointer.restore()
    logging.getLogger("hdet").removeHandler(handler)
    run.train(start)
    return start, run.point(), records


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_ranks_take_the_newest_that_is_sound_on_all_of_them(
    pool: Pool, tmp_path: Path, bad_rank: int
) -> None:
    pool.run(trained, 2, str(tmp_path / "saved"), 2 * T, "OneCycleLR", False)
    found = pool.run(unsound_on, 2, str(tmp_path), bad_rank)
    assert [own[0] for own in found] == [T, T]
    assert (
        "step-00000010.pt is skipped: its 4 bytes do not match its checksum: it is torn or "
        in (found[0][2][0])
    )
    assert f"(on ranks [{bad_rank}])" in found[0][2][0]
    assert found[1][2] == [], "told once"


def terminated(rank: int, directory: str, who: list[int], again: bool) -> Any:
    before = signal.getsignal(signal.SIGTERM)
    run = Ranked(rank, directory)
    start = run.checkpointer.restore()
    code = None
    try:
        for step in range(start, S):
            if step == 12 and rank in who:
                os.kill(os.getpid(), signal.SIGTERM)
                if again:  # what torchrun passes on after the cluster's own
                    os.kill(os.getpid(), signal.SIGTERM)
            run.step()
            run.checkpointer.step()
    except SystemExit as leaving:
        code = leaving.code
    return code, run.scheduler.ensemble.num_steps, signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("who", [[0], [1], [0, 1]])
def test_all_ranks_write_a_last_checkpoint_at_the_same_step(
    pool: Pool, tmp_path: Path, who: list[int]
) -> None:
    found = pool.run(terminated, 2, str(tmp_path), who, len(who) == 1)
    assert found == [(143, 13, True)] * 2
    assert files.listed(tmp_path)[0].step == 13


def full(rank: int, directory: str, from_start: bool) -> Any:
    """Rank 0 cannot write: nobody waits for it for ever."""
    run = Ranked(rank, directory)
    start = run.checkpointer.restore()
    if not from_start:
        run.train(start, T)

    def refuse(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    write, files.write = files.write, refuse
    try:
        run.train(start, T)
    except hdet.errors.CheckpointError as error:
        return str(error)
    finally:
        files.write = write
    return "went on"


@pytest.mark.parametrize("from_start", [True, False])
def test_a_full_disk_is_everybodys(pool: Pool, tmp_path: Path, from_start: bool) -> None:
    found = pool.run(full, 2, str(tmp_path), from_start)
    assert found[0] == found[1]
    assert ("No space left" in found[0]) == from_start


def unplain(rank: int, directory: str) -> str:
    run = Ranked(rank, directory, data=Note())
    run.checkpointer.restore()
    for name, own in run.checkpointer._contents._objects.items():
        if name == "data":
            own.text = object()
    try:
        run.checkpointer.save()
    except hdet.HDETError as error:
        return str(error)
    return "saved"


def test_a_state_that_cannot_be_saved_is_everybodys_error(pool: Pool, tmp_path: Path) -> None:
    found = pool.run(unplain, 2, str(tmp_path))
    assert all("data['text'] must be of plain types and tensors, got a object" in e for e in found)


def listened(rank: int) -> tuple[list[Any], int]:
    """A handler that was there before is called, and one that is forked hears its own."""
    heard: list[Any] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("before"))
    try:
        own = stopping.StopSignal()
        own.install()
        signal.raise_signal(signal.SIGTERM)
        assert own.received
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            own._previous = signal.SIG_DFL
            signal.raise_signal(signal.SIGTERM)
            os._exit(7)
        status = os.waitpid(child, 0)[1]
        try:
            own.answer()
        except SystemExit as leaving:
            heard.append(leaving.code)
        signal.raise_signal(signal.SIGTERM)
        unanswered = stopping.StopSignal()
        unanswered.install()
        signal.raise_signal(signal.SIGTERM)
        unanswered.uninstall()  # nobody will answer: done now
        late = stopping.StopSignal()
        late.install()
        signal.raise_signal(signal.SIGTERM)
        late._received_at = -100.0
        signal.raise_signal(signal.SIGTERM)
        return heard, os.waitstatus_to_exitcode(status)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_who_else_listens_to_sigterm_is_heard(pool: Pool) -> None:
    heard, child = pool.run(listened, 1, group=False)[0]
    assert heard == ["before", 143, "before", "before", "before"]
    assert child == -signal.SIGTERM


def memory_of(rank: int) -> list[tuple[int, list[float]]]:
    run = Ranked(rank, "/nowhere", kind="AutoLR", agree_steps=0)
    found = []
    for _ in range(S // 2):
        run.step()
        ensemble = run.scheduler.ensemble
        parts = [own.reshape(-1) for own in ensemble.signal.memory()]
        found.append((ensemble.num_cycles, torch.cat(parts).tolist()))
    return found
