"""A DDP script that outlives its ranks: run by torchrun in test_checkpointer_killed.py.

Each entry of ``plan``, ``[rank, where, offset]``, kills one start of the script: that rank, by
SIGKILL, that many steps after where it went on, in the middle of a step, of a converge or of a
checkpoint (half written, or between its two names). "terminate" is SIGTERM instead.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import hdet
from hdet.checkpointing import files

WHERE = ("step", "converge", "write", "rename")
CYCLE_STEPS = 4


def scheduler_of(kind: str, optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
    if kind == "AutoLR":
        return hdet.AutoLR(optimizer, total_steps)
    if kind == "exploring AutoLR":
        return hdet.AutoLR(optimizer, total_steps, spread_ratio=0.2)
    return hdet.OneCycleLR(
        optimizer,
        3e-2,
        total_steps=total_steps,
        spread_ratio=0.3,
        cycle_steps=CYCLE_STEPS,
        auto_lr=True,
        warmup_steps=2 * CYCLE_STEPS,
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_converge(self: hdet.DistributedReplicas, flat: torch.Tensor) -> Any:
    if flat.dim() > 0:  # the answer to whether anybody got SIGTERM is one number
        die()
    return dist.all_reduce(flat, async_op=True)


def die_in_write(self: Any, data: Any) -> int:
    self.hashed.update(data)
    written: int = self._file.write(data)
    if self._file.tell() > 8000:
        self._file.flush()
        die()
    return written


def die_in_rename(self: Path, target: Path) -> None:
    if self.name.endswith(".pt.tmp"):
        die()
    os.replace(self, target)


def arm(where: str) -> None:
    """Die now, in the next message that averages, or in the next checkpoint's file."""
    if where == "converge":
        hdet.DistributedReplicas.all_reduce = die_in_converge  # type: ignore[method-assign]
    elif where == "write":
        files._Hashing.write = die_in_write  # type: ignore[method-assign]
    elif where == "rename":
        Path.replace = die_in_rename  # type: ignore[method-assign,assignment]
    elif where == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        die()


def train(kind: str, folder: Path, total_steps: int, plan: list[Any]) -> None:
    rank, start_number = dist.get_rank(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = scheduler_of(kind, optimizer, total_steps)
    data = torch.Generator().manual_seed(100 + rank)
    checkpointer = hdet.Checkpointer(
        folder / "checkpoints", model=ddp, optimizer=optimizer, scheduler=scheduler, data=data
    )
    start = checkpointer.restore()
    pause_s = float(os.environ.get("PAUSE_S", "0"))
    own_rank, where, offset = plan[start_number] if start_number < len(plan) else (-1, "", 0)
    for step in range(start, total_steps):
        x = torch.randn(8, 4, generator=data)
        loss = (ddp(x) - x[:, :1] * x[:, 1:2]).square().mean()
        if rank == own_rank and step - start == offset:
            note = folder / f"killed-{start_number}"
            note.write_text(f"{where} at step {step}, begun at {start}")
            arm(where)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(loss)
        checkpointer.step()
        if pause_s > 0.0:
            time.sleep(pause_s)
    scheduler.converge()
    point = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    if rank == 0:
        torch.save({"point": point, "base": scheduler.ensemble.base_values}, folder / "end.pt")


def main(kind: str, folder: str, total_steps: str, plan: str) -> None:
    warnings.simplefilter("error", hdet.HDETWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    train(kind, Path(folder), int(total_steps), json.loads(plan))
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
