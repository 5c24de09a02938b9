"""A DDP script that outlives killed processes: three lines more than examples/ddp.py.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/restart.py run/checkpoints

Kill a worker while it runs, or the whole of it, and start it again: it goes on, to the same end.
"""

import gc
import logging
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hdet

NUM_STEPS = 400

logging.basicConfig(level=logging.INFO, format="%(message)s")
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)

torch.manual_seed(rank)


def train(directory: str) -> None:
    """The whole script; what it builds is gone when it returns."""
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    ddp = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = hdet.OneCycleLR(
        optimizer, 1e-2, total_steps=NUM_STEPS, spread_ratio=1 / 9, cycle_steps=20
    )
    data = torch.Generator(device).manual_seed(rank)  # every replica reads its own data

    checkpointer = hdet.Checkpointer(
        directory, model=ddp, optimizer=optimizer, scheduler=scheduler, data=data
    )
    for _ in range(checkpointer.restore(), NUM_STEPS):
        x = torch.randn(16, 16, device=device, generator=data)
        loss = nn.functional.mse_loss(ddp(x), x[:, :1] * x[:, 1:2])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step(loss)
        checkpointer.step()

    if rank == 0:
        print(f"sum of the weights {sum(p.sum().item() for p in model.parameters()):.12f}")


train(sys.argv[1])
gc.collect()  # where DDP is still alive, torch with gloo may abort at exit, with hdet or without
dist.destroy_process_group()
